//! Refused cgroups: the root, the proxy's and the agent's.

use std::{
    io::Read as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use fairmesh_kernel::{
    Attachments, KernelError, ProxyMaps, Selection, attach, detach, enter_cgroup, own_attachment,
};

use crate::place::{Place, callers, enter};

/// Environment variables for a proxy process: the directory of pins, and its cgroup.
const PROXY_PINS: &str = "FAIRMESH_TEST_PROXY_PINS";
const PROXY_CGROUP: &str = "FAIRMESH_TEST_PROXY_CGROUP";

#[test]
fn attach_refuses_root_proxy_and_agent_cgroups() {
    if let Some(pins) = std::env::var_os(PROXY_PINS).map(PathBuf::from) {
        return be_proxy_in_its_cgroup(&pins, &std::env::var(PROXY_CGROUP).unwrap());
    }
    let Some(place) = Place::new("refused") else { return };
    let refused = place.attach("/", Selection::default(), None);
    assert!(matches!(refused, Err(KernelError::Cgroup { .. })), "{refused:?}");
    assert!(!place.pins().exists(), "nothing was made");
    refuses_the_agents(&place);

    let selection = Selection { ports: vec![1], ..Selection::default() };
    place.attach(&place.cgroup, selection, None).unwrap();
    let own = format!("{}-proxy", place.cgroup);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "refused::attach_refuses_root_proxy_and_agent_cgroups", "--nocapture"]);
    command.env(PROXY_PINS, place.pins()).env(PROXY_CGROUP, &own);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Attaching the callers' cgroup, the servers' cgroup, or a parent must fail while the agent is in it.
fn refuses_the_agents(place: &Place) {
    let own = format!("{}/agent", place.cgroup);
    let script = format!("{} && echo in && exec cat", enter(&own));
    let mut agent = Command::new("bash");
    let mut agent = agent.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 3];
    agent.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let selection = || Selection { ports: vec![1], ..Selection::default() };
    let elsewhere = || callers(&format!("{}-callers", place.cgroup), selection());
    for to in [
        callers(&own, selection()),
        callers(&place.cgroup, selection()),
        Attachments { servers: vec![own.clone()], ..elsewhere() },
    ] {
        let refused = attach(&place.pins(), &Attachments { agent: Some(agent.id()), ..to });
        let refused = refused.map_err(|error| error.to_string());
        assert!(matches!(&refused, Err(why) if why.contains("contains the agent")), "{refused:?}");
    }
    assert!(!place.pins().exists(), "nothing was made");
    attach(&place.pins(), &Attachments { agent: Some(agent.id()), ..elsewhere() }).unwrap();
    detach(&place.pins()).unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
}

/// Runs as the proxy, first in a cgroup of its own while that is being attached, then in the callers' cgroup.
fn be_proxy_in_its_cgroup(pins: &Path, own: &str) {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    enter_cgroup(own).unwrap();
    let maps = ProxyMaps::register(pins, &proxy, false, None).unwrap();
    let to = callers(own, Selection { ports: vec![1], ..Selection::default() });
    let refused = attach(pins, &to);
    assert!(matches!(refused, Err(KernelError::Cgroup { .. })), "{refused:?}");
    drop(maps);
    assert_eq!(own_attachment(pins).unwrap(), None);

    let callers = own.strip_suffix("-proxy").unwrap();
    enter_cgroup(callers).unwrap();
    assert_eq!(own_attachment(pins).unwrap().as_deref(), Some(callers));
    let refused = ProxyMaps::register(pins, &proxy, false, None);
    assert!(matches!(refused, Err(KernelError::Cgroup { .. })), "{refused:?}");
}
