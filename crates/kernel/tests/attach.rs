//! Programs attached to a cgroup of the test, on virtual addresses of this machine.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    thread,
};

use aya::maps::{Array, Map, MapData};
use fairmesh_kernel::{
    Attachments, Counter, KernelError, KernelSender, Policy, ProxyMaps, Selection, attach, detach,
    enter_cgroup, own_attachment, probe, status,
};
use fairmesh_router::{CandidateNumbers, RouteNumbers, ServiceNumbers};
use fairmesh_test_support::{remove_cgroups, skipped};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A BPF file system and a cgroup of one test; what is left of them is removed with the value.
struct Place {
    folder: tempfile::TempDir,
    cgroup: String,
}

impl Place {
    /// `None` where eBPF is refused, which is said.
    fn new(name: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        if let Err(error) = mount("bpf", folder.path(), "bpf", MountFlags::empty(), None) {
            skipped("eBPF programs cannot be attached", error);
            return None;
        }
        let place = Self { folder, cgroup: format!("/fairmesh-test-{}-{name}", process::id()) };
        let refused = probe(&place.pins()).into_iter().find_map(|check| check.problem);
        if let Some(refused) = refused {
            skipped("eBPF programs cannot be attached", refused);
            return None;
        }
        Some(place)
    }

    fn pins(&self) -> PathBuf {
        self.folder.path().join("fairmesh")
    }

    fn attach(&self, cgroup: &str, selection: Selection, owner: Option<u32>) -> Result<(), KernelError> {
        attach(&self.pins(), &Attachments { owner, ..callers(cgroup, selection) })
    }

    /// Connects from a program in the cgroup, and returns what it received.
    fn connect(&self, to: SocketAddr) -> String {
        Self::connect_from(&self.cgroup, to)
    }

    fn connect_from(cgroup: &str, to: SocketAddr) -> String {
        let enter = enter(cgroup);
        let script = format!("{enter} && exec 3<>/dev/tcp/{}/{} && cat <&3", to.ip(), to.port());
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

/// What is attached to a cgroup of callers, without any option.
fn callers(cgroup: &str, selection: Selection) -> Attachments {
    Attachments {
        callers: cgroup.to_owned(),
        selection,
        only_services: false,
        max_in_flight: None,
        servers: Vec::new(),
        short_cut: true,
        owner: None,
        agent: None,
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = detach(&self.pins());
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
        remove_cgroups(&self.cgroup);
    }
}

fn counted(place: &Place, counter: Counter) -> u64 {
    let counters = status(&place.pins()).unwrap().counters;
    counters.into_iter().find(|(one, _)| *one == counter).unwrap().1
}

/// Accepts one connection, and sends its own name.
fn greet(listener: &TcpListener, greeting: &str) -> SocketAddr {
    let (mut stream, caller) = listener.accept().unwrap();
    stream.write_all(greeting.as_bytes()).unwrap();
    caller
}

#[test]
fn connections_are_redirected_while_the_proxy_listens_and_nothing_is_left_after_detach() {
    let Some(place) = Place::new("redirect") else { return };
    let server = TcpListener::bind("127.96.7.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let selection = Selection { networks: vec![([127, 96, 0, 0].into(), 16)], ports: vec![to.port()] };
    place.attach(&place.cgroup, selection, None).unwrap();
    let direct = || {
        thread::scope(|scope| {
            scope.spawn(|| greet(&server, "direct"));
            assert_eq!(place.connect(to), "direct");
        });
    };
    direct();
    assert_eq!(counted(&place, Counter::NoProxy), 1);

    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let maps = ProxyMaps::register(&place.pins(), &proxy, false).unwrap();
    assert_eq!(status(&place.pins()).unwrap().proxy, Some(process::id()));
    thread::scope(|scope| {
        let accepted = scope.spawn(|| greet(&proxy, "proxy"));
        assert_eq!(place.connect(to), "proxy");
        let caller = accepted.join().unwrap();
        assert_eq!(SocketAddr::from(maps.take(caller).unwrap().address), to);
        assert!(maps.take(caller).is_none(), "a destination is taken once");
    });
    assert_eq!(counted(&place, Counter::Redirected), 1);

    // The maps stay open, as those of a proxy that is about to end.
    drop(proxy);
    direct();
    assert_eq!(status(&place.pins()).unwrap().proxy, None);

    assert_eq!(detach(&place.pins()).unwrap(), std::slice::from_ref(&place.cgroup));
    assert!(!place.pins().exists());
    assert!(matches!(status(&place.pins()), Err(KernelError::NotAttached(_))));
}

#[test]
fn a_cgroup_within_another_one_has_its_own_programs() {
    let Some(place) = Place::new("within") else { return };
    let server = TcpListener::bind("127.96.7.3:0").unwrap();
    let to = server.local_addr().unwrap();
    let selection = || Selection { networks: vec![([127, 96, 0, 0].into(), 16)], ports: vec![to.port()] };
    let inner = format!("{}/inner", place.cgroup);
    place.attach(&place.cgroup, selection(), None).unwrap();
    place.attach(&inner, selection(), None).unwrap();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let maps = ProxyMaps::register(&place.pins(), &proxy, false).unwrap();
    for from in [&place.cgroup, &inner] {
        thread::scope(|scope| {
            let accepted = scope.spawn(|| greet(&proxy, "proxy"));
            assert_eq!(Place::connect_from(from, to), "proxy");
            let caller = accepted.join().unwrap();
            assert_eq!(maps.take(caller).map(|found| SocketAddr::from(found.address)), Some(to), "{from}");
        });
    }
    assert_eq!(counted(&place, Counter::Redirected), 2);
}

#[test]
fn maps_of_another_release_are_refused_until_they_are_detached() {
    let Some(place) = Place::new("release") else { return };
    place.attach(&place.cgroup, Selection::default(), None).unwrap();
    let map = MapData::from_pin(place.pins().join("layout")).and_then(Map::from_map_data).unwrap();
    Array::try_from(map).unwrap().set(0, 1_u64, 0).unwrap();

    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusals = [
        place.attach(&place.cgroup, Selection::default(), None).unwrap_err(),
        status(&place.pins()).unwrap_err(),
        ProxyMaps::register(&place.pins(), &proxy, false).unwrap_err(),
        KernelSender::open(&place.pins()).unwrap_err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, KernelError::OtherRelease(_)), "{refusal}");
    }
    detach(&place.pins()).unwrap();
    place.attach(&place.cgroup, Selection::default(), None).unwrap();
    status(&place.pins()).unwrap();
}

#[test]
fn where_only_services_may_be_reached_connections_are_refused_while_no_proxy_listens() {
    let Some(place) = Place::new("only") else { return };
    let server = TcpListener::bind("127.96.7.2:0").unwrap();
    let to = server.local_addr().unwrap();
    let selection = || Selection { ports: vec![to.port()], ..Selection::default() };
    let is_refused = || {
        let before = counted(&place, Counter::Refused);
        let said = place.connect(to);
        assert!(said.contains("Connection refused"), "{said}");
        assert_eq!(counted(&place, Counter::Refused), before + 1);
    };
    let by_proxy = |only_services, expected| {
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let maps = ProxyMaps::register(&place.pins(), &proxy, only_services).unwrap();
        thread::scope(|scope| {
            let accepted = scope.spawn(|| greet(&proxy, "proxy"));
            assert_eq!(place.connect(to), "proxy");
            assert_eq!(maps.take(accepted.join().unwrap()).unwrap().only_services, expected);
        });
    };
    // Of the cgroup: before the first proxy too.
    let only_services = Attachments { only_services: true, ..callers(&place.cgroup, selection()) };
    attach(&place.pins(), &only_services).unwrap();
    is_refused();
    by_proxy(false, true);
    is_refused();
    let now = status(&place.pins()).unwrap();
    assert!(now.attachments[0].only_services && !now.only_services, "{now:?}");

    // Of the proxy, also after its end.
    attach(&place.pins(), &callers(&place.cgroup, selection())).unwrap();
    let direct = || {
        thread::scope(|scope| {
            scope.spawn(|| greet(&server, "direct"));
            assert_eq!(place.connect(to), "direct");
        });
    };
    direct();
    by_proxy(true, false);
    is_refused();
    assert!(status(&place.pins()).unwrap().only_services);
    by_proxy(false, false);
    direct();
}

#[test]
fn programs_of_others_stay_attached() {
    let (Some(first), Some(mut second)) = (Place::new("others"), Place::new("others-2")) else { return };
    second.cgroup.clone_from(&first.cgroup);
    let selection = |port| Selection { ports: vec![port], ..Selection::default() };
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    first.attach(&first.cgroup, selection(to.port()), None).unwrap();
    second.attach(&second.cgroup, selection(to.port()), None).unwrap();
    let connect = || {
        thread::scope(|scope| {
            scope.spawn(|| greet(&server, "direct"));
            assert_eq!(first.connect(to), "direct");
        });
    };
    connect();
    assert_eq!([&first, &second].map(|place| counted(place, Counter::NoProxy)), [1, 1]);
    detach(&second.pins()).unwrap();
    connect();
    assert_eq!(counted(&first, Counter::NoProxy), 2);
}

/// The variables that name the pins and its cgroup to the process of a proxy.
const PROXY_PINS: &str = "FAIRMESH_TEST_PROXY_PINS";
const PROXY_CGROUP: &str = "FAIRMESH_TEST_PROXY_CGROUP";

#[test]
fn the_root_cgroup_and_those_of_the_proxy_and_the_agent_are_refused() {
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
    command.args([
        "--exact",
        "the_root_cgroup_and_those_of_the_proxy_and_the_agent_are_refused",
        "--nocapture",
    ]);
    command.env(PROXY_PINS, place.pins()).env(PROXY_CGROUP, &own);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The cgroup of callers, that of servers, and one above it, while the agent is in it.
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

/// Has a shell enter a cgroup, which is made if it is missing.
fn enter(cgroup: &str) -> String {
    let mount = "$(awk '$3 == \"cgroup2\" { print $2; exit }' /proc/self/mounts)";
    format!("folder={mount}{cgroup} && mkdir -p $folder && echo $$ > $folder/cgroup.procs")
}

/// The process of a proxy: in a cgroup of its own, to which the programs are to be attached, and then in that of callers.
fn be_proxy_in_its_cgroup(pins: &Path, own: &str) {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    enter_cgroup(own).unwrap();
    let maps = ProxyMaps::register(pins, &proxy, false).unwrap();
    let to = callers(own, Selection { ports: vec![1], ..Selection::default() });
    let refused = attach(pins, &to);
    assert!(matches!(refused, Err(KernelError::Cgroup { .. })), "{refused:?}");
    drop(maps);
    assert_eq!(own_attachment(pins).unwrap(), None);

    let callers = own.strip_suffix("-proxy").unwrap();
    enter_cgroup(callers).unwrap();
    assert_eq!(own_attachment(pins).unwrap().as_deref(), Some(callers));
    let refused = ProxyMaps::register(pins, &proxy, false);
    assert!(matches!(refused, Err(KernelError::Cgroup { .. })), "{refused:?}");
}

#[test]
fn a_thousand_services_of_twenty_endpoints_fit_into_64_mib() {
    let Some(place) = Place::new("memory") else { return };
    place.attach(&place.cgroup, Selection { ports: vec![1], ..Selection::default() }, None).unwrap();
    let sender = KernelSender::open(&place.pins()).unwrap().unwrap();
    let candidate =
        |index: u32| CandidateNumbers { index, weight: 1, cumulative_weight: u64::from(index) + 1 };
    let candidates = std::array::from_fn(|index| candidate(index as u32));
    let numbers =
        ServiceNumbers { ticks_per_nano: 1, memory: 1, policy: 0, len: 20, equal_weight: 1, candidates };
    let services: Vec<_> = (0..1000)
        .map(|service| {
            let block = sender.take_block().unwrap();
            let routes = RouteNumbers::default();
            let policy =
                Policy { origin: 0, block: block.position(), numbers, routes: &routes, arms: Vec::new() };
            assert!((0..20).all(|index| sender.endpoint(block.position(), index).is_some()));
            (sender.publish(&format!("service-{service}.shop"), &policy).unwrap(), block)
        })
        .collect();
    let memory = status(&place.pins()).unwrap().memory;
    let bytes: u64 = memory.iter().map(|(_, bytes)| bytes).sum();
    assert!((1 << 20..64 << 20).contains(&bytes), "{bytes} in {memory:?}");
    drop(services);
}

/// The variable that names the pins to the process of a user without capabilities.
const PINS: &str = "FAIRMESH_TEST_PINS";
/// The user nobody.
const NOBODY: u32 = 65_534;

#[test]
fn the_owner_of_the_maps_needs_no_capability() {
    if let Some(pins) = std::env::var_os(PINS).map(PathBuf::from) {
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let _maps = ProxyMaps::register(&pins, &proxy, false).unwrap();
        let sender = KernelSender::open(&pins).unwrap().unwrap();
        assert!(
            sender.add_caller(1, ([127, 0, 0, 1], 1).into(), None).is_some() && sender.take_block().is_some()
        );
        assert!(detach(&pins).is_err(), "links are root's");
        return assert_eq!(status(&pins).unwrap().proxy, Some(process::id()));
    }
    let Some(place) = Place::new("owner") else { return };
    let selection = Selection { ports: vec![1], ..Selection::default() };
    place.attach(&place.cgroup, selection, Some(NOBODY)).unwrap();
    let nobody = format!("--reuid={NOBODY}");
    let mut command = Command::new("setpriv");
    command.args([&nobody, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "the_owner_of_the_maps_needs_no_capability", "--nocapture"]);
    let output = match command.env(PINS, place.pins()).output() {
        Ok(output) => output,
        Err(error) => return skipped("setpriv takes capabilities away", error),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
