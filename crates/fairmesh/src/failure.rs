//! Why a command ended without doing what it was asked, in words for the person who typed it.

use std::{fmt, process::ExitCode};

/// A failed command: a report for people and an exit code for programs.
pub(crate) struct Failure {
    report: miette::Report,
    code: u8,
}

impl Failure {
    /// Something on this or the other side went wrong: exit code 1.
    pub(crate) fn failed(message: impl fmt::Display + fmt::Debug + Send + Sync + 'static) -> Self {
        Self { report: miette::Report::msg(message), code: 1 }
    }

    /// What was typed or written is invalid, and nothing was changed: exit code 2.
    pub(crate) fn invalid(report: impl Into<miette::Report>) -> Self {
        Self { report: report.into(), code: 2 }
    }

    /// Prints the report to standard error; the code is the process's.
    pub(crate) fn report(self) -> ExitCode {
        eprintln!("{:?}", self.report);
        ExitCode::from(self.code)
    }
}

impl From<miette::Report> for Failure {
    fn from(report: miette::Report) -> Self {
        Self { report, code: 1 }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (exit code {})", self.report, self.code)
    }
}
