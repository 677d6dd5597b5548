//! Errors of commands, for people.

use std::{fmt, io::IsTerminal, process::ExitCode};

use fairmesh_model::Invalid;
use miette::{Diagnostic, MietteHandlerOpts, Report, miette};
use serde::Serialize;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::output;

/// A failure on this or the other side.
const FAILED: u8 = 1;
/// Invalid arguments or input; nothing was changed.
const INVALID: u8 = 2;

/// A failed command: a report for people and an exit code for programs.
pub struct Failure {
    report: Report,
    code: u8,
    /// The places of an error in files, for programs.
    places: Vec<Place>,
    /// Whether the other side, or the way to it, ended while it was to respond.
    is_connection_lost: bool,
    /// Whether the other side refused what was asked.
    is_refusal: bool,
}

/// An error at a place in a file.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// The file as it was given; `-` is standard input.
    pub file: String,
    /// From 1, as the column.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The error, without the place.
    pub problem: String,
    /// What to write instead.
    pub hint: String,
}

impl Failure {
    const fn new(report: Report, code: u8) -> Self {
        Self { report, code, places: Vec::new(), is_connection_lost: false, is_refusal: false }
    }

    /// A failure on this or the other side.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(miette!("{message}"), FAILED)
    }

    /// The same with a hint.
    pub fn failed_with(message: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self::new(miette!(help = hint.into(), "{message}"), FAILED)
    }

    /// Invalid input at these places; nothing was changed.
    pub fn invalid(diagnostic: impl Diagnostic + Send + Sync + 'static, places: Vec<Place>) -> Self {
        Self { places, ..Self::new(Report::new(diagnostic), INVALID) }
    }

    /// An invalid argument; nothing was changed.
    pub fn refused(message: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self::new(miette!(help = hint.into(), "{message}"), INVALID)
    }

    /// A long-running component ended by itself; the message contains each cause.
    pub fn stopped(error: &dyn std::error::Error) -> Self {
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

    /// What went wrong, without the hint.
    pub fn message(&self) -> String {
        self.report.to_string()
    }

    /// An error status of a call. Its message contains the hint.
    pub fn from_status(status: &Status) -> Self {
        let code = if status.code() == Code::InvalidArgument { INVALID } else { FAILED };
        // A status without a cause was sent by the control plane, such as that its disk takes no writes.
        let is_connection_lost =
            status.code() == Code::Unavailable && std::error::Error::source(status).is_some();
        let report = match status.code() {
            _ if is_connection_lost => miette!(
                help = "check whether it still runs; the call may or may not have been applied",
                "the connection to the control plane was lost: {}",
                status.message()
            ),
            Code::Unimplemented => miette!(
                help =
                    "give the control plane with --control; agents and older releases do not serve this call",
                "this call is not served there: {}",
                status.message()
            ),
            _ => miette!("{}", status.message()),
        };
        let is_refusal =
            matches!(status.code(), Code::PermissionDenied | Code::InvalidArgument | Code::Unimplemented);
        Self { is_connection_lost, is_refusal, ..Self::new(report, code) }
    }

    /// Whether the same may succeed over another connection.
    pub const fn is_connection_lost(&self) -> bool {
        self.is_connection_lost
    }

    /// The same, as a refusal by the other side.
    pub const fn into_refusal(mut self) -> Self {
        self.is_refusal = true;
        self
    }

    /// Whether the other side refused what was asked, so that asking again does not help.
    pub const fn is_refusal(&self) -> bool {
        self.is_refusal
    }

    /// Prints the report to standard error; returns the exit code of the process.
    pub fn report(self) -> ExitCode {
        match output::has_json_messages() {
            true => output::say(self.json()),
            false => output::say(format_args!("{:?}", self.report)),
        }
        ExitCode::from(self.code)
    }

    /// For programs. A report that points at places in files has them in `report` as text, and in `items`.
    fn json(&self) -> Value {
        let mut error = json!({
            "message": self.report.to_string(),
            "hint": self.report.help().map(|hint| hint.to_string()),
            "exitCode": self.code,
        });
        if self.report.labels().is_some_and(|mut labels| labels.next().is_some()) {
            error["report"] = json!(format!("{:?}", self.report));
        }
        if !self.places.is_empty() {
            error["items"] = json!(self.places);
        }
        json!({ "error": error })
    }
}

impl From<Invalid> for Failure {
    /// A record or a response is invalid, which is not an error in the arguments.
    fn from(invalid: Invalid) -> Self {
        Self::failed_with(format!("{}: {}", invalid.field, invalid.problem), invalid.hint)
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::from_status(&status)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (exit code {})", self.report, self.code)
    }
}

/// Wraps and colours reports on a terminal only: programs search them line by line.
pub fn configure_reports() {
    let person = std::io::stderr().is_terminal();
    // Fails only if a handler is set already; this is the only place that sets one.
    let _ = miette::set_hook(Box::new(move |_| {
        let options = MietteHandlerOpts::new().wrap_lines(person).terminal_links(false);
        Box::new(if person { options } else { options.color(false).width(400) }.build())
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_told_from_a_call_that_may_succeed_later() {
        for refused in [Code::PermissionDenied, Code::InvalidArgument, Code::Unimplemented] {
            assert!(Failure::from(Status::new(refused, "no")).is_refusal(), "{refused:?}");
        }
        for other in [Code::Unavailable, Code::DeadlineExceeded, Code::Internal, Code::ResourceExhausted] {
            assert!(!Failure::from(Status::new(other, "later")).is_refusal(), "{other:?}");
        }
        assert!(!Failure::failed("no complete response within 30 s").is_refusal());
    }
}
