//! Errors of commands, for display.

use std::{fmt, io::IsTerminal, process::ExitCode};

use fairmesh_model::Invalid;
use miette::{Diagnostic, MietteHandlerOpts, Report, miette};
use serde::Serialize;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::output;

/// Exit code of a failure on this or the remote side.
const FAILED: u8 = 1;
/// Exit code of invalid arguments or input; nothing was changed.
const INVALID: u8 = 2;

/// A failed command: a report to display, and an exit code.
pub struct Failure {
    report: Report,
    code: u8,
    /// Positions of the error in files, for the JSON output.
    places: Vec<Place>,
    /// Whether the connection or the remote side ended before the response.
    is_connection_lost: bool,
    /// Whether the remote side refused the request.
    is_refusal: bool,
}

/// An error at a place in a file.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// The file as given; `-` is standard input.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The error, without the position.
    pub problem: String,
    /// Correction that the message suggests; may be empty.
    pub hint: String,
}

impl Failure {
    const fn new(report: Report, code: u8) -> Self {
        Self { report, code, places: Vec::new(), is_connection_lost: false, is_refusal: false }
    }

    /// A failure on this or the remote side.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(miette!("{message}"), FAILED)
    }

    /// A failure with a hint.
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

    /// A long-running component that ended by itself; the message contains each cause.
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

    /// Whether the command may succeed over a new connection.
    pub const fn is_connection_lost(&self) -> bool {
        self.is_connection_lost
    }

    /// Marks the failure as a refusal by the remote side.
    pub const fn into_refusal(mut self) -> Self {
        self.is_refusal = true;
        self
    }

    /// Whether the remote side refused the request, so that a retry would be refused again.
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

    /// The failure as JSON. A report that points at positions in files has the text in `report` and the positions in
    /// `items`.
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

/// Wraps and colours reports only on a terminal, since programs search them line by line.
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
    fn permanent_refusal_is_distinguished_from_retryable_failure() {
        for refused in [Code::PermissionDenied, Code::InvalidArgument, Code::Unimplemented] {
            assert!(Failure::from(Status::new(refused, "no")).is_refusal(), "{refused:?}");
        }
        for other in [Code::Unavailable, Code::DeadlineExceeded, Code::Internal, Code::ResourceExhausted] {
            assert!(!Failure::from(Status::new(other, "later")).is_refusal(), "{other:?}");
        }
        assert!(!Failure::failed("no complete response within 30 s").is_refusal());
    }
}
