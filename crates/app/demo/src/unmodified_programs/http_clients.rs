//! The unmodified programs.

use std::{env, fs, io, net::SocketAddr, path::Path, process::Stdio};

use tokio::{process::Command, time::timeout};

use super::{CALL_TIMEOUT, ComparedCall, picks, picks::Picks};

/// A program that makes calls and prints response headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpClient {
    /// Name for display, and for the shell.
    pub(super) name: &'static str,
    /// Name and text of the script, if the program is an interpreter.
    script: Option<(&'static str, &'static str)>,
}

pub(super) const HTTP_CLIENTS: [HttpClient; 3] = [
    HttpClient { name: "curl", script: None },
    HttpClient { name: "python3", script: Some(("caller.py", include_str!("caller.py"))) },
    HttpClient { name: "node", script: Some(("caller.js", include_str!("caller.js"))) },
];

impl HttpClient {
    /// Whether the program is installed.
    pub(super) fn is_installed(&self) -> bool {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).any(|folder| folder.join(self.name).is_file())
    }

    /// Writes the program's script, if it has one.
    pub(super) fn prepare(&self, folder: &Path) -> io::Result<()> {
        self.script.map_or(Ok(()), |(file, text)| fs::write(folder.join(file), text))
    }

    /// Makes the calls with the program, through a proxy.
    pub(super) async fn call(&self, folder: &Path, proxy: SocketAddr, probe: &ComparedCall) -> Picks {
        let mut command = self.command(folder, probe);
        command.env("http_proxy", format!("http://{proxy}"));
        for exception in ["no_proxy", "NO_PROXY"] {
            command.env_remove(exception);
        }
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output =
            timeout(CALL_TIMEOUT, output).await.map_err(|_| format!("{} took too long", self.name))?;
        let output = output.map_err(|error| format!("{}: {error}", self.name))?;
        if !output.status.success() {
            return Err(format!("{}: {}", self.name, String::from_utf8_lossy(&output.stderr).trim()));
        }
        let heads = String::from_utf8_lossy(&output.stdout);
        picks::read(&heads, probe.calls()).map_err(|problem| format!("{}: {problem}", self.name))
    }

    fn command(&self, folder: &Path, probe: &ComparedCall) -> Command {
        let mut command = Command::new(self.name);
        let (url, headers, calls) = (probe.url(), probe.headers(), probe.calls());
        match self.script {
            Some((script, _)) => {
                command.arg(folder.join(script)).args([url, calls.to_string()]).args(headers);
            }
            None => {
                command.args(["--silent", "--show-error", "--dump-header", "-"]);
                command.args(headers.iter().flat_map(|header| ["--header", header]));
                command.args((0..calls).flat_map(|_| ["--output", "/dev/null", &url]));
            }
        }
        command
    }
}
