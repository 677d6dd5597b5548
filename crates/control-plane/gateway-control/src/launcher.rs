//! Runs the provider's command that starts a backend.

use std::{collections::BTreeSet, net::SocketAddr, process::Stdio, time::Duration};

use fairmesh_model::{Label, ServiceName, Zone};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    time::timeout,
};

/// The most bytes of output that are read: the addresses of 64 replicas take less.
const MAX_OUTPUT: u64 = 16 << 10;
/// The most bytes of an error that are shown.
const MAX_SHOWN: usize = 300;

/// A secret of the control plane, which is not for the command.
const ETCD_PASSWORD: &str = "FAIRMESH_ETCD_PASSWORD";

/// The provider's command that starts the replicas of a backend.
///
/// A shell runs it, with the backend's name in `FAIRMESH_BACKEND`, its zone in `FAIRMESH_ZONE`, and the service that needs it in
/// `FAIRMESH_SERVICE`. It prints the addresses of the replicas, one a line. It has to give the same replicas when it is run again for the same
/// backend: that happens after a failure, and when a control plane ended while it ran.
#[derive(Clone, Debug)]
pub struct GatewayLauncher {
    /// The command.
    pub command: String,
    /// How long it may take. It is killed then, with all processes of its group.
    pub time_limit: Duration,
}

/// A backend to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) backend: Label,
    pub(crate) zone: Zone,
    /// The service whose calls have grown, if it is known.
    pub(crate) service: Option<ServiceName>,
}

/// Kills what is left of a command when it takes too long, or this process stops.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl GatewayLauncher {
    /// Starts a backend, and returns the addresses of its replicas.
    ///
    /// # Errors
    /// Why there are none, as a text for operators.
    pub(crate) async fn launch(&self, launch: &Launch) -> Result<BTreeSet<SocketAddr>, String> {
        match timeout(self.time_limit, self.run(launch)).await {
            Ok(result) => result,
            Err(_) => Err(format!("it took longer than {:?}, and was killed", self.time_limit)),
        }
    }

    async fn run(&self, launch: &Launch) -> Result<BTreeSet<SocketAddr>, String> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &self.command]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell.env("FAIRMESH_BACKEND", launch.backend.as_str()).env("FAIRMESH_ZONE", launch.zone.as_str());
        let service = launch.service.as_ref().map(ToString::to_string).unwrap_or_default();
        shell.env("FAIRMESH_SERVICE", service).env_remove(ETCD_PASSWORD).process_group(0);
        let mut child = shell.spawn().map_err(|error| format!("it cannot be run: {error}"))?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let mut group = Group(id);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (ended, printed, errors) = tokio::join!(child.wait(), read(stdout), read(stderr));
        // Processes that the command leaves running are the backend.
        group.0 = None;
        let ended = ended.map_err(|error| format!("it cannot be waited for: {error}"))?;
        match ended.success() {
            true => addresses(&printed),
            false => Err(format!("{ended}: {}", shown(&errors))),
        }
    }
}

/// Reads output up to a bound; more of it breaks the pipe.
async fn read(output: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(output) = output {
        // Output that was read before a failure is shown.
        let _ = output.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The end of a text, which has the error, in one line.
fn shown(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let from = line.len().saturating_sub(MAX_SHOWN);
    let from = (from..=line.len()).find(|at| line.is_char_boundary(*at)).unwrap_or(line.len());
    if line.is_empty() { "it printed no error".to_owned() } else { line[from..].to_owned() }
}

fn addresses(printed: &str) -> Result<BTreeSet<SocketAddr>, String> {
    let lines = printed.lines().map(str::trim).filter(|line| !line.is_empty());
    let address = |line: &str| {
        let invalid =
            |_| format!("it printed '{}' where the address of a replica is due, ip:port", shown(line));
        line.parse::<SocketAddr>().map_err(invalid)
    };
    let addresses = lines.map(address).collect::<Result<BTreeSet<_>, _>>()?;
    if addresses.is_empty() {
        return Err("it printed no address; print that of each replica, ip:port, one a line".to_owned());
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn launched(command: &str) -> Result<BTreeSet<SocketAddr>, String> {
        let launcher =
            GatewayLauncher { command: command.to_owned(), time_limit: Duration::from_millis(500) };
        let launch = Launch {
            backend: Label::new("launched-1").unwrap(),
            zone: Zone::new("a").unwrap(),
            service: Some(ServiceName::new("red/web").unwrap()),
        };
        launcher.launch(&launch).await
    }

    #[tokio::test]
    async fn launcher_gets_names_and_gives_addresses() {
        let command = "test \"$FAIRMESH_BACKEND $FAIRMESH_ZONE $FAIRMESH_SERVICE\" = 'launched-1 a red/web' && printf '10.0.0.1:1\\n\\n 10.0.0.2:1\\n'";
        let addresses = launched(command).await.unwrap();
        assert_eq!(addresses, ["10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap()].into());
    }

    #[tokio::test]
    async fn launcher_that_fails_says_why() {
        for (command, part) in [
            ("echo no quota is left >&2; exit 3", "no quota is left"),
            ("exit 3", "printed no error"),
            ("echo started", "'started' where the address"),
            ("true", "printed no address"),
            ("yes", "printed no error"),
            ("no-such-command-here", "not found"),
        ] {
            let error = launched(command).await.unwrap_err();
            assert!(error.contains(part) && error.len() < 500, "{command}: {error}");
        }
    }

    #[tokio::test]
    async fn launcher_that_hangs_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let command = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let error = launched(&command).await.unwrap_err();
        assert!(error.contains("took longer than 500ms"), "{error}");
        let child = std::fs::read_to_string(file).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        // A killed process may wait for its parent.
        let is_over = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        while !is_over() {
            tokio::task::yield_now().await;
        }
    }
}
