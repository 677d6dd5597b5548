//! `fairmesh dev`: control plane, agent and proxy in one process.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
};

use fairmesh_test_support::free_port;
use tempfile::TempDir;

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, over_tcp, token},
    support::{Run, fairmesh, send, wait_until},
};

/// A running `fairmesh dev` with its own sockets and ports.
pub(crate) struct Dev {
    folder: TempDir,
    child: Child,
    out: BufReader<ChildStdout>,
    proxy: String,
    /// HTTP address of its control plane, and admin address of its proxy.
    pub(crate) http: String,
    pub(crate) admin: String,
    /// HTTP address of its agent.
    pub(crate) metrics: String,
}

impl Dev {
    /// Starts `fairmesh dev` in a folder, with its configuration in `config`, and waits until it reports that it is
    /// ready.
    pub(crate) fn start(folder: TempDir, further: &[&str]) -> Self {
        let [proxy, http, admin, metrics] = [(); 4].map(|()| format!("127.0.0.1:{}", free_port()));
        let pages = ["--control-admin", &http, "--admin", &admin, "--agent-admin", &metrics];
        let mut child = command(&folder, &proxy).args(pages).args(further).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("fairmesh dev is ready after ") {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended: {:?}", child.wait());
        }
        Self { folder, child, out, proxy, http, admin, metrics }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        fairmesh(&format!("unix:{}", self.path("control.sock").display()), args, "")
    }

    /// Ends the process as Ctrl-C does; returns the folder and the rest of the output.
    pub(crate) fn stop(mut self) -> (TempDir, String) {
        send(&self.child, "INT");
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        (self.folder, rest)
    }
}

fn command(folder: &TempDir, proxy: &str) -> Command {
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("tmp")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    command
        .args(["dev", "--proxy", proxy])
        .env_clear()
        .env("TMPDIR", path("tmp"))
        .env("FAIRMESH_CONTROL", format!("unix:{}", path("control.sock").display()))
        .env("FAIRMESH_AGENT", format!("unix:{}", path("agent.sock").display()))
        .stdout(Stdio::piped());
    command
}

fn service(name: &str) -> String {
    format!("kind: Service\nname: shop/{name}\n")
}

#[test]
fn dev_command_serves_registration_call_and_proxy_in_one_process() {
    let dev = Dev::start(tempfile::tempdir().unwrap(), &[]);
    let agent = format!("unix:{}", dev.path("agent.sock").display());
    let program = format!("127.0.0.1:{}", echo());
    let mut register = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    register.args(["register", "shop/hello", "--address", &program, "--agent", &agent]).env_clear();
    let mut register = register.stderr(Stdio::null()).spawn().unwrap();
    dev.run(&["wait", "shop/hello"]).ok();
    assert!(dev.run(&["call", "shop/hello", "/a", "--agent", &agent]).ok().starts_with("GET /a HTTP/1.1"));
    let mut client = TcpStream::connect(&dev.proxy).unwrap();
    client.write_all(b"GET /b HTTP/1.1\r\nhost: hello.shop\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK") && response.contains("GET /b HTTP/1.1"), "{response}");
    register.kill().unwrap();
    register.wait().unwrap();
    let (folder, _) = dev.stop();
    assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0, "its data is deleted");
}

#[test]
fn dev_command_follows_its_folder_and_ignores_invalid_files() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("shop.yaml"), service("one")).unwrap();
    let dev = Dev::start(folder, &["--config", config.to_str().unwrap()]);
    let declared = |name: &str| dev.run(&["get", "services"]).ok().contains(name);
    assert!(declared("shop/one"), "it is applied before it is ready");
    fs::write(config.join("shop.yaml"), "kind: Servise\n").unwrap();
    fs::write(config.join("more.yaml"), service("two")).unwrap();
    assert!(declared("shop/one") && !declared("shop/two"), "all or nothing");
    fs::write(config.join("shop.yaml"), service("three")).unwrap();
    wait_until("the change is applied", || declared("shop/three"));
    assert!(declared("shop/one") && declared("shop/two"));
    let (_, printed) = dev.stop();
    assert!(printed.contains("Service shop/three created\n"), "{printed}");
}

#[test]
fn dev_command_keeps_data_in_given_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), folder.path().join("shop.yaml"));
    fs::write(&config, service("one")).unwrap();
    let data = data.to_str().unwrap();
    let (folder, _) = Dev::start(folder, &["--data-dir", data, "--config", config.to_str().unwrap()]).stop();
    let dev = Dev::start(folder, &["--data-dir", data]);
    assert!(dev.run(&["get", "services"]).ok().contains("shop/one"));
    dev.stop();
}

#[test]
fn dev_command_reports_invalid_files_and_ports_in_use_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("shop.yaml");
    fs::write(&config, "kind: Servise\n").unwrap();
    let proxy = format!("127.0.0.1:{}", free_port());
    let [http, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    let pages = ["--control-admin", &http, "--admin", &admin, "--agent-admin", "none"];
    let refused = command(&folder, &proxy).args(pages).arg("--config").arg(&config).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let refused = command(&folder, &format!("127.0.0.1:{}", echo())).args(pages).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot listen on") && said.contains("--proxy"), "{said}");
    assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0, "its data is deleted");
}

#[test]
fn dev_command_applies_folder_beside_agent_of_secured_mesh() {
    let (mesh, tcp) = domain();
    let (_joined, joined) = agent(&mesh, "web-1", &tcp, Some(&token(&mesh, &["web-1"])));
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    wait_until("it issues identities", || over_tcp(&tcp, &joined, &["identity", "show"]).code == Some(0));
    let folder = tempfile::tempdir().unwrap();
    let (config, own) = (folder.path().join("shop.yaml"), folder.path().join("agent.sock"));
    fs::write(&config, service("one")).unwrap();
    let [proxy, control, http, admin, metrics] = [(); 5].map(|()| format!("127.0.0.1:{}", free_port()));
    let mut command = command(&folder, &proxy);
    // The agent of this machine is a member of the other mesh.
    command.env("FAIRMESH_AGENT", &joined).arg("--config").arg(&config);
    command.args(["--agent", &format!("unix:{}", own.display()), "--control", &control]);
    command.args(["--control-admin", &http, "--admin", &admin, "--agent-admin", &metrics]);
    let mut dev = Killed(command.spawn().unwrap());
    let mut out = BufReader::new(dev.0.stdout.take().unwrap());
    let mut printed = String::new();
    while !printed.contains("fairmesh dev is ready after ") {
        assert_ne!(out.read_line(&mut printed).unwrap(), 0, "it ended: {printed}");
    }
    assert!(printed.contains("Service shop/one created"), "{printed}");
}
