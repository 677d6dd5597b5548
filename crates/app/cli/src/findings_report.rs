//! Checks of a command and their findings.

use std::{collections::BTreeSet, fmt};

use fairmesh_console::view_reader::{View, effect_of_unreadable};
use fairmesh_model::Invalid;
use serde::Serialize;
use serde_json::{Value, json};

/// Maximum number of names listed in one finding.
const MAX_NAMED: usize = 5;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Level {
    /// There is no problem.
    #[default]
    Ok,
    /// Something optional is absent.
    Note,
    /// Something will fail later, or a setting has no effect.
    Warning,
    /// Something fails now.
    Error,
}

/// Result of one check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    /// A stable name for programs, such as `agent.unreachable`.
    check: &'static str,
    level: Level,
    message: String,
    /// Remedy for the problem; empty if there is nothing to do.
    remedy: String,
}

/// Results of all checks, in order.
#[derive(Debug, Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// Records a check without a problem.
    pub(super) fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Level::Ok, message, "");
    }

    /// Records a finding of any level.
    pub(super) fn add(
        &mut self,
        check: &'static str,
        level: Level,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.findings.push(Finding { check, level, message: message.into(), remedy: remedy.into() });
    }

    /// Records an error for each record that cannot be read. Checks go on without them.
    pub(super) fn add_unreadable(&mut self, view: &View) {
        for (key, Invalid { field, problem, hint }) in &view.unreadable {
            let effect = effect_of_unreadable(key).map(|effect| format!(": {effect}")).unwrap_or_default();
            let message = format!("{field} cannot be read: {problem}{effect}");
            self.add("record.unreadable", Level::Error, message, hint.clone());
        }
    }

    /// Returns the highest level of all findings.
    pub(super) fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or_default()
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> Value {
        json!({ "sound": self.worst() < Level::Warning, "checks": self.findings })
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { check, level, message, remedy } in &self.findings {
            let level = match level {
                Level::Ok => "ok",
                Level::Note => "note",
                Level::Warning => "warning",
                Level::Error => "error",
            };
            writeln!(f, "{level:<8} {check:<22} {message}")?;
            if !remedy.is_empty() {
                writeln!(f, "{:<31} -> {remedy}", "")?;
            }
        }
        let (errors, warnings) = (self.count(Level::Error), self.count(Level::Warning));
        match (errors, warnings) {
            (0, 0) => writeln!(f, "\nnothing is wrong"),
            _ => writeln!(f, "\nerrors: {errors}, warnings: {warnings}"),
        }
    }
}

/// Lists the first names, and the number of the others.
pub(super) fn listed(names: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMED).map(String::as_str).collect();
    match names.len().saturating_sub(MAX_NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
