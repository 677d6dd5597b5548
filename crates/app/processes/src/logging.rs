//! Logs of long-running commands: to standard error, as text or as JSON lines.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use fairmesh_console::failure::Failure;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// Logging options.
#[derive(Clone, Debug, Args)]
pub struct Logging {
    /// Log level: error, warn, info, debug or trace, also by component, such as info,fairmesh_rib=debug
    /// [default: info; of dev: warn; of register: error and the decisions of authorization policies].
    #[arg(long, env = "FAIRMESH_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Format of log lines.
    #[arg(long, env = "FAIRMESH_LOG_FORMAT", value_enum, default_value_t, value_name = "FORM")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LogFormat {
    /// For people; coloured on a terminal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Returns a filter that is a single word but not a level, such as a mistyped level. Such a filter would be taken for
/// the name of a component, and nothing else would be logged.
fn unknown_level(filter: &str) -> Option<&str> {
    let mut words = filter.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.find(|word| !word.contains(['=', '[', ':']) && word.parse::<LevelFilter>().is_err())
}

impl Logging {
    /// Starts logging for the whole process.
    pub fn start(&self) -> Result<(), Failure> {
        self.start_at("info")
    }

    /// Starts logging for a command whose output is for people: by default only warnings.
    pub fn start_quiet(&self) -> Result<(), Failure> {
        self.start_at("warn")
    }

    /// Starts logging for a command that prints its own status. By default, it logs only errors and refused callers:
    /// those that an authorization policy refuses, or would refuse once it is enforced rather than audited.
    pub fn start_decisions(&self) -> Result<(), Failure> {
        self.start_at("error,fairmesh_server::authorization=info")
    }

    fn start_at(&self, default: &str) -> Result<(), Failure> {
        let log = self.log.as_deref().unwrap_or(default);
        let refused = |problem: String| {
            let hint =
                "write error, warn, info, debug or trace, also by component, such as info,fairmesh_rib=debug";
            Failure::refused(problem, hint)
        };
        if let Some(word) = unknown_level(log) {
            return Err(refused(format!("'{word}' is not a log level")));
        }
        let filter = EnvFilter::try_new(log)
            .map_err(|error| refused(format!("'{log}' is not a log filter: {error}")))?;
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            // Otherwise, if standard error is closed, a failed write would cause a panic in whichever task logs.
            .log_internal_errors(false);
        let started = match self.log_format {
            LogFormat::Text => subscriber.with_ansi(std::io::stderr().is_terminal()).try_init(),
            LogFormat::Json => subscriber.json().try_init(),
        };
        started.map_err(Failure::failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_invalid_log_level() {
        for filter in
            ["info", "WARN", "off", "info,fairmesh_rib=debug", "h2=trace, error", "fairmesh_calls::call", ""]
        {
            assert_eq!(unknown_level(filter), None, "{filter}");
        }
        for filter in ["verbose", "info,verbose", "fairmesh_rib=debug,loud"] {
            assert!(unknown_level(filter).is_some(), "{filter}");
        }
    }
}
