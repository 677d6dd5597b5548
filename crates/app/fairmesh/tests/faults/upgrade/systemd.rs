//! The shipped unit under a real systemd: systemd alone decides which process it watches after an upgrade.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command as Blocking, Stdio},
};

use fairmesh_model::Protocol;
use tokio::process::Command;

use super::{Callers, Place};
use crate::harness::{
    PATIENCE, Process, Program, Run, Spec, World, beside_others, path, run, skipped, until,
};

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../deploy/fairmesh-proxy.service");
const SERVICE: &str = "fairmesh-proxy";
/// Settings that only the machine's own service manager supports, or that a test does not need.
const NOT_HERE: [&str; 6] = ["User=", "Group=", "Wants=", "After=", "Private", "Protect"];
/// Gives the manager its own cgroups and its own `/run`.
const BOOT: &str = r#"
    for root in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
        [ ! -e $root/cgroup.procs ] || { mkdir -p $root/$GROUP && echo $$ > $root/$GROUP/cgroup.procs; } || exit 1
    done
    exec unshare --mount sh -c '
        mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec /lib/systemd/systemd --user'
"#;
/// Kills all processes in these cgroups from within, and removes the cgroups once they are empty.
const END: &str = r#"
    for _ in $(seq 200); do
        groups=$(find /sys/fs/cgroup -maxdepth 2 -name $GROUP)
        [ -n "$groups" ] || exit 0
        find $groups -name cgroup.procs -exec cat {} + | xargs -r kill -KILL
        find $groups -depth -type d -exec rmdir {} +
        sleep 0.05
    done
    exit 1
"#;

/// A systemd that runs only the test's units.
struct Manager {
    process: Process,
    folder: PathBuf,
    group: String,
}

impl Manager {
    /// The error says why this machine cannot run a second systemd.
    async fn start(world: &World, options: &str) -> Result<Self, String> {
        let (folder, group) = (world.path("systemd"), format!("fairmesh-{}", std::process::id()));
        let units = folder.join("systemd/user");
        fs::create_dir_all(&units).unwrap();
        fs::create_dir(folder.join("run")).unwrap();
        let mut program = Program::fairmesh(folder.join("log"), "");
        program.binary = "/bin/sh".into();
        program.args = vec!["-c".into(), BOOT.into()];
        program.env = vec![("PATH", path()), ("GROUP", group.clone())];
        program.env.extend(Self::told(&folder));
        fs::write(units.join(format!("{SERVICE}.service")), unit(&folder)).unwrap();
        let mut manager = Self { process: Process::start(program), folder, group };
        manager.set(options);
        until("the manager answers or ends", async || {
            manager.process.has_ended().is_some() || manager.ctl("show -p Version").await.code == Some(0)
        })
        .await;
        match manager.process.has_ended() {
            Some(status) => Err(format!("systemd ends with {status}: {}", manager.process.log())),
            None => Ok(manager),
        }
    }

    fn told(folder: &Path) -> [(&'static str, String); 3] {
        let at = |name| folder.join(name).display().to_string();
        [("HOME", at("")), ("XDG_CONFIG_HOME", at("")), ("XDG_RUNTIME_DIR", at("run"))]
    }

    /// Writes the proxy's options, as an operator would.
    fn set(&self, options: &str) {
        fs::write(self.folder.join("proxy.env"), format!("FAIRMESH_PROXY_OPTIONS={options}\n")).unwrap();
    }

    async fn ctl(&self, arguments: &str) -> Run {
        let mut command = Command::new("/usr/bin/env");
        let told = Self::told(&self.folder).map(|(name, value)| format!("{name}={value}"));
        command.arg(format!("PATH={}", path())).args(told);
        command.args(["systemctl", "--user"]).args(arguments.split(' '));
        run(command, "", 2 * PATIENCE).await
    }

    /// Main process id, number of restarts, and state of the service.
    async fn seen(&self) -> (u32, u32, String) {
        let mut values = Vec::new();
        for name in ["MainPID", "NRestarts", "ActiveState"] {
            let value = self.ctl(&format!("show {SERVICE} --value -p {name}")).await.ok();
            values.push(value.trim().to_owned());
        }
        (values[0].parse().unwrap(), values[1].parse().unwrap(), values.swap_remove(2))
    }
}

/// The shipped unit, without settings that only the machine's own systemd supports.
fn unit(folder: &Path) -> String {
    let shipped = fs::read_to_string(UNIT).unwrap();
    let unit: Vec<_> =
        shipped.lines().filter(|line| !NOT_HERE.iter().any(|start| line.starts_with(start))).collect();
    let log = format!(
        "Type=notify\nStandardOutput=append:{0}\nStandardError=append:{0}",
        folder.join("log").display()
    );
    let unit = unit.join("\n").replace("Type=notify", &log);
    let unit = unit.replace("/usr/local/bin/fairmesh", env!("CARGO_BIN_EXE_fairmesh"));
    unit.replace("/etc/fairmesh", &folder.display().to_string())
}

impl Drop for Manager {
    fn drop(&mut self) {
        let mut end = Blocking::new("/bin/sh");
        let removed = end.args(["-c", END]).env("GROUP", &self.group).stderr(Stdio::null()).status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("control groups {} are left; remove them with rmdir", self.group);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_follows_upgraded_proxy_and_survives_failed_reload() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let place = Place::new(&world);
    let manager = match Manager::start(&world, &place.options("")).await {
        Ok(manager) => manager,
        Err(reason) => return skipped("systemd cannot be run", reason.trim()),
    };
    manager.ctl(&format!("start {SERVICE}")).await.ok();
    place.ready().await;
    let callers = Callers::start(&place.listen);
    callers.go_on(50).await;
    let (mut watched, restarts, state) = manager.seen().await;
    assert_eq!((restarts, &state[..]), (0, "active"));

    // Several upgrades: systemd itself started the first process, but not the second.
    for cores in [1, 2, 1] {
        // In quotes, which a start and a reload must parse in the same way.
        manager.set(&place.options(&format!(" --cores \"{cores}\"")));
        manager.ctl(&format!("reload {SERVICE}")).await.ok();
        let (now, restarts, state) = manager.seen().await;
        assert_eq!((restarts, &state[..]), (0, "active"), "{}", manager.process.log());
        assert_ne!(now, watched, "{}", manager.process.log());
        watched = now;
        callers.go_on(50).await;
    }

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    manager.set(&place.options(&format!(" --listen {}", taken.local_addr().unwrap())));
    manager.ctl(&format!("reload {SERVICE}")).await.fails();
    assert!(manager.process.log().contains("cannot listen on"), "{}", manager.process.log());
    assert_eq!(manager.seen().await, (watched, 0, "active".into()));
    callers.go_on(50).await;
    callers.stop_unharmed().await;

    // A supervised successor drains like a process that systemd started itself.
    let drained = || manager.process.log().matches("drained").count();
    assert_eq!(drained(), 3, "{}", manager.process.log());
    manager.ctl(&format!("stop {SERVICE}")).await.ok();
    assert_eq!((drained(), manager.seen().await.2), (4, "inactive".into()), "{}", manager.process.log());

    manager.set(&place.options(""));
    manager.ctl(&format!("start {SERVICE}")).await.ok();
    manager.ctl(&format!("kill --signal KILL {SERVICE}")).await.ok();
    until("it is started again", async || manager.seen().await.1 == 1).await;
    place.ready().await;
}
