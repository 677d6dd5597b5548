//! Why a command ended without doing what it was asked, in words for the person who typed it.

use std::{fmt, io::IsTerminal, process::ExitCode};

use fairmesh_model::Invalid;
use miette::{Diagnostic, MietteHandlerOpts, Report, miette};
use tonic::{Code, Status};

/// Something on this or the other side went wrong.
const FAILED: u8 = 1;
/// What was typed or written is invalid; nothing was changed.
const INVALID: u8 = 2;

/// A failed command: a report for people and an exit code for programs.
pub(crate) struct Failure {
    report: Report,
    code: u8,
}

impl Failure {
    /// Something on this or the other side went wrong.
    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self { report: miette!("{message}"), code: FAILED }
    }

    /// The same with a way out.
    pub(crate) fn failed_with(message: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self { report: miette!(help = hint.into(), "{message}"), code: FAILED }
    }

    /// What was typed or written is invalid, and nothing was changed.
    pub(crate) fn invalid(diagnostic: impl Diagnostic + Send + Sync + 'static) -> Self {
        Self { report: Report::new(diagnostic), code: INVALID }
    }

    /// A value is refused, and nothing was changed.
    pub(crate) fn refused(message: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self { report: miette!(help = hint.into(), "{message}"), code: INVALID }
    }

    /// A long-running part ended by itself; each cause is said.
    pub(crate) fn stopped(error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Some messages quote their cause already.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        Self::failed(message)
    }

    /// The other side refused a call. Its message says what to do.
    pub(crate) fn answered(status: &Status) -> Self {
        let code = if status.code() == Code::InvalidArgument { INVALID } else { FAILED };
        let report = match status.code() {
            Code::Unavailable => miette!(
                help = "see whether it still runs; what was asked may or may not have been done",
                "the control plane went away: {}",
                status.message()
            ),
            Code::Unimplemented => miette!(
                help = "name the control plane with --control; agents and older releases do not answer this",
                "this is not served there: {}",
                status.message()
            ),
            _ => miette!("{}", status.message()),
        };
        Self { report, code }
    }

    /// Prints the report to standard error; the code is the process's.
    pub(crate) fn report(self) -> ExitCode {
        eprintln!("{:?}", self.report);
        ExitCode::from(self.code)
    }
}

impl From<Invalid> for Failure {
    /// A record or an answer is not valid, and whoever typed the command is not to blame.
    fn from(invalid: Invalid) -> Self {
        Self::failed_with(format!("{}: {}", invalid.field, invalid.problem), invalid.hint)
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::answered(&status)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (exit code {})", self.report, self.code)
    }
}

/// Reports wrap and take colour only where a person looks on: programs search them line by line.
pub(crate) fn shape_reports() {
    let person = std::io::stderr().is_terminal();
    // Fails only when a handler is set already, and this is the one place that sets one.
    let _ = miette::set_hook(Box::new(move |_| {
        let options = MietteHandlerOpts::new().wrap_lines(person).terminal_links(false);
        Box::new(if person { options } else { options.color(false).width(400) }.build())
    }));
}
