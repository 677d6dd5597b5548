//! Runs the provider's command that starts a backend.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use fairmesh_model::{Label, ServiceName, Zone};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    time::timeout,
};

/// The most bytes of output that are read: the addresses of 64 replicas take less.
const MAX_OUTPUT: u64 = 16 << 10;
/// The most bytes of an error that are shown.
const MAX_SHOWN: usize = 300;

/// How long the output is read after the command has ended.
const OUTPUT_AFTER_END: Duration = Duration::from_secs(1);

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
    /// Environment variables of this process that the command does not inherit.
    pub secrets: Vec<&'static str>,
}

/// A backend to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) backend: Label,
    pub(crate) zone: Zone,
    /// The service whose calls have grown, if it is known.
    pub(crate) service: Option<ServiceName>,
}

/// Kills what is left of a command when it takes too long, its output stays open, or this process stops.
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
        let mut child = self.shell(launch).spawn().map_err(|error| format!("it cannot be run: {error}"))?;
        let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
        let (ended, printed, errors) = output_of(&mut child).await?;
        // Processes that the command leaves running are the backend.
        group.0 = None;
        match ended.success() {
            true => addresses(&printed),
            false => Err(format!("{ended}: {}", shown(&errors))),
        }
    }

    /// The command, which inherits no secret of the control plane.
    fn shell(&self, launch: &Launch) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &self.command]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell.env("FAIRMESH_BACKEND", launch.backend.as_str()).env("FAIRMESH_ZONE", launch.zone.as_str());
        let service = launch.service.as_ref().map(ToString::to_string).unwrap_or_default();
        shell.env("FAIRMESH_SERVICE", service).process_group(0);
        for name in &self.secrets {
            shell.env_remove(name);
        }
        shell
    }
}

/// Waits for the end of a command. Returns its status, its output and its errors.
async fn output_of(child: &mut Child) -> Result<(ExitStatus, String, String), String> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let outputs = async { tokio::join!(read(stdout), read(stderr)) };
    tokio::pin!(outputs);
    let mut read = None;
    let ended = loop {
        tokio::select! {
            ended = child.wait() => break ended,
            outputs = &mut outputs, if read.is_none() => read = Some(outputs),
        }
    };
    let ended = ended.map_err(|error| format!("it cannot be waited for: {error}"))?;
    if read.is_none() {
        read = timeout(OUTPUT_AFTER_END, outputs).await.ok();
    }
    let (printed, errors) = read.ok_or_else(|| {
        "it has ended, and a process that it left running keeps its output open; redirect the output and the errors of that process, such as to a file".to_owned()
    })?;
    Ok((ended, printed, errors))
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
        launched_within(command, Duration::from_millis(500)).await
    }

    async fn launched_within(command: &str, time_limit: Duration) -> Result<BTreeSet<SocketAddr>, String> {
        GatewayLauncher { command: command.to_owned(), time_limit, secrets: Vec::new() }
            .launch(&launch())
            .await
    }

    fn launch() -> Launch {
        Launch {
            backend: Label::new("launched-1").unwrap(),
            zone: Zone::new("a").unwrap(),
            service: Some(ServiceName::new("red/web").unwrap()),
        }
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

    /// Waits for the end of the process whose id is in a file.
    async fn wait_for_end(file: &std::path::Path) {
        let child = std::fs::read_to_string(file).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        // A killed process may wait for its parent.
        let is_over = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        let ended = async {
            while !is_over() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), ended).await.expect("it ends");
    }

    #[tokio::test]
    async fn launcher_whose_child_keeps_output_open_is_killed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let command = format!("sleep 1000 & echo $! > {}; echo 10.0.0.1:1", file.display());
        let error = launched_within(&command, Duration::from_mins(5)).await.unwrap_err();
        assert!(error.contains("keeps its output open"), "{error}");
        wait_for_end(&file).await;

        let command = "sleep 1000 > /dev/null 2>&1 & echo 10.0.0.1:$! ; kill $!";
        assert!(launched_within(command, Duration::from_mins(5)).await.is_ok());
    }

    #[tokio::test]
    async fn launcher_inherits_no_secret() {
        // Cargo sets this one for each test.
        let secret = "CARGO_MANIFEST_DIR";
        assert!(std::env::var_os(secret).is_some());
        let command = format!("test -z \"${secret}\" && test -n \"$PATH\" && echo 10.0.0.1:1");
        let launched = async |secrets| {
            let command = command.clone();
            GatewayLauncher { command, time_limit: Duration::from_secs(5), secrets }.launch(&launch()).await
        };
        assert!(launched(vec![]).await.is_err());
        assert!(launched(vec![secret]).await.is_ok());
    }

    #[tokio::test]
    async fn launcher_that_hangs_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let command = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let error = launched(&command).await.unwrap_err();
        assert!(error.contains("took longer than 500ms"), "{error}");
        wait_for_end(&file).await;
    }
}
