//! Programs attached to a cgroup of the test, on virtual addresses of this machine.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    fs,
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
    Attachments { callers: cgroup.to_owned(), selection, ..Attachments::default() }
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

    let detached = detach(&place.pins()).unwrap();
    assert_eq!((detached.cgroups, detached.left), (vec![place.cgroup.clone()], Vec::new()));
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

/// Which of two cgroups, one within the other, may reach services alone decides on its own programs, whatever the other one may.
#[test]
fn of_cgroups_within_others_the_inner_one_decides_whether_only_services_may_be_reached() {
    let Some(place) = Place::new("nested") else { return };
    let to = SocketAddr::from(([127, 96, 7, 4], 80));
    let inner = format!("{}/inner", place.cgroup);
    let attach_both = |outer: bool| {
        for (cgroup, only_services) in [(&place.cgroup, outer), (&inner, !outer)] {
            let selection = Selection { networks: vec![([127, 96, 7, 4].into(), 32)], ports: Vec::new() };
            let to = Attachments { only_services: Some(only_services), ..callers(cgroup, selection) };
            attach(&place.pins(), &to).unwrap();
        }
    };
    for outer in [false, true] {
        attach_both(outer);
        // Without a proxy, what either one refuses is.
        let before = counted(&place, Counter::Refused);
        assert!(Place::connect_from(&inner, to).contains("Connection refused"));
        assert_eq!(counted(&place, Counter::Refused), before + 1, "outer {outer}");
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let maps = ProxyMaps::register(&place.pins(), &proxy, false).unwrap();
        for (from, expected) in [(&place.cgroup, outer), (&inner, !outer)] {
            thread::scope(|scope| {
                let accepted = scope.spawn(|| greet(&proxy, "proxy"));
                assert_eq!(Place::connect_from(from, to), "proxy");
                let caller = accepted.join().unwrap();
                let found = maps.take(caller).map(|found| found.only_services);
                assert_eq!(found, Some(expected), "{from}, outer {outer}");
            });
        }
    }
}

#[test]
fn a_repeated_attach_keeps_what_it_is_not_given() {
    let Some(place) = Place::new("repeated") else { return };
    let networks = || vec![([127, 96, 0, 0].into(), 16)];
    let first = Attachments {
        only_services: Some(true),
        max_in_flight: Some(7),
        short_cut: Some(false),
        ..callers(&place.cgroup, Selection { networks: networks(), ports: Vec::new() })
    };
    attach(&place.pins(), &first).unwrap();
    let own = || status(&place.pins()).unwrap().attachments.remove(0);
    let shown = || {
        let own = own();
        let most = own.max_in_flight.map(std::num::NonZeroU32::get);
        (own.networks, own.ports, own.only_services, most, own.short_cut)
    };
    assert_eq!(shown(), (networks(), vec![80], true, Some(7), false));

    let ports = || Selection { ports: vec![81, 82], ..Selection::default() };
    place.attach(&place.cgroup, ports(), None).unwrap();
    assert_eq!(shown(), (networks(), vec![81, 82], true, Some(7), false));
    let refused = place.connect(([127, 96, 7, 5], 82).into());
    assert!(refused.contains("Connection refused"), "{refused}");
    assert_eq!(counted(&place, Counter::Refused), 1);
    place.connect(([127, 96, 7, 5], 80).into());
    assert_eq!(counted(&place, Counter::Refused), 1, "port 80 is selected no longer");

    let anywhere = Selection { networks: vec![([0, 0, 0, 0].into(), 0)], ports: Vec::new() };
    let other = Attachments {
        only_services: Some(false),
        max_in_flight: Some(0),
        short_cut: Some(true),
        ..callers(&place.cgroup, anywhere)
    };
    attach(&place.pins(), &other).unwrap();
    let none = vec![([0, 0, 0, 0].into(), 0)];
    assert_eq!(shown(), (none, vec![81, 82], false, None, true));
    let links = fs::read_dir(place.pins()).unwrap().flatten();
    let links = links.filter(|pin| pin.file_name().to_string_lossy().starts_with("link-")).count();
    assert_eq!(links, 5, "of getpeername and connect, each for IPv4 and IPv6, and of connections");
}

/// A program that allows every connect over IPv6, attached to this cgroup so that none may be attached to those within it.
mod exclusive {
    #![allow(unsafe_code, reason = "no library attaches one in this way any more")]

    use std::{
        fs::File,
        os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        path::Path,
    };

    const PROG_LOAD: libc::c_int = 5;
    const PROG_ATTACH: libc::c_int = 8;
    const SOCK_ADDR: u32 = 18;
    const INET6_CONNECT: u32 = 11;

    #[repr(C)]
    struct Load {
        kind: u32,
        instructions: u32,
        at: u64,
        license: u64,
        unused: [u32; 10],
        interface: u32,
        attach_type: u32,
    }

    pub(super) fn attach(cgroup: &Path) -> OwnedFd {
        // r0 = 1; exit
        let program = [0x1_0000_00b7_u64, 0x95];
        let load = Load {
            kind: SOCK_ADDR,
            instructions: 2,
            at: program.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            unused: [0; 10],
            interface: 0,
            attach_type: INET6_CONNECT,
        };
        // SAFETY: the kernel reads the attributes, of which it is told the size, and what they point to, which outlives the call.
        let loaded = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()) };
        assert!(loaded >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the kernel has just opened it.
        let program = unsafe { OwnedFd::from_raw_fd(RawFd::try_from(loaded).unwrap()) };
        let folder = File::open(cgroup).unwrap();
        let to = [folder.as_raw_fd() as u32, program.as_raw_fd() as u32, INET6_CONNECT, 0];
        // SAFETY: as above.
        let attached = unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, to.as_ptr(), size_of_val(&to)) };
        assert!(attached >= 0, "{}", std::io::Error::last_os_error());
        program
    }
}

#[test]
fn a_repeated_attach_that_fails_leaves_what_was_attached() {
    let Some(place) = Place::new("fails") else { return };
    let inner = format!("{}/inner", place.cgroup);
    let guarded = Attachments {
        only_services: Some(true),
        ..callers(&inner, Selection { networks: vec![([127, 96, 0, 0].into(), 16)], ports: Vec::new() })
    };
    attach(&place.pins(), &guarded).unwrap();
    let _program = exclusive::attach(&folder_of(&place.cgroup));
    let open = Attachments {
        only_services: Some(false),
        ..callers(&inner, Selection { ports: vec![81], ..Selection::default() })
    };
    let refused = attach(&place.pins(), &open);
    assert!(matches!(refused, Err(KernelError::Refused { .. })), "{refused:?}");
    let own = status(&place.pins()).unwrap().attachments.remove(0);
    assert_eq!((own.only_services, own.ports), (true, vec![80]));
    let said = Place::connect_from(&inner, ([127, 96, 7, 6], 80).into());
    assert!(said.contains("Connection refused"), "{said}");
    assert_eq!(counted(&place, Counter::Refused), 1);
}

/// Where a cgroup lies.
fn folder_of(cgroup: &str) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).unwrap();
    PathBuf::from(format!("{}{cgroup}", mount.split(' ').nth(1).unwrap()))
}

#[test]
fn the_short_cut_is_not_taken_from_cgroups_that_use_it() {
    let Some(place) = Place::new("short") else { return };
    place.attach(&place.cgroup, Selection::default(), None).unwrap();
    let without = |cgroup| Attachments { short_cut: Some(false), ..callers(cgroup, Selection::default()) };
    let other = format!("{}-other", place.cgroup);
    for cgroup in [&place.cgroup, &other] {
        let refused = attach(&place.pins(), &without(cgroup)).unwrap_err().to_string();
        assert!(
            refused.contains("fairmesh kernel detach") && refused.contains("--no-short-cut"),
            "{refused}"
        );
    }
    assert_eq!(status(&place.pins()).unwrap().attachments.len(), 1);
    assert!(!folder_of(&other).exists());
    detach(&place.pins()).unwrap();
    attach(&place.pins(), &without(&place.cgroup)).unwrap();
    // It is that of all cgroups.
    place.attach(&other, Selection::default(), None).unwrap();
    assert!(status(&place.pins()).unwrap().attachments.iter().all(|one| !one.short_cut));
}

#[test]
fn cgroups_that_were_created_are_removed_and_those_that_stay_are_named() {
    let Some(place) = Place::new("created") else { return };
    let inner = format!("{}/a/b", place.cgroup);
    let elsewhere = tempfile::tempdir().unwrap();
    let refused = attach(&elsewhere.path().join("fairmesh"), &callers(&inner, Selection::default()));
    assert!(matches!(refused, Err(KernelError::NoBpfFileSystem(_))), "{refused:?}");
    assert!(!folder_of(&place.cgroup).exists());

    place.attach(&inner, Selection::default(), None).unwrap();
    let script = format!("{} && echo in && exec cat", enter(&inner));
    let mut program = Command::new("bash");
    let program = program.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let mut said = [0; 3];
    program.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let detached = detach(&place.pins()).unwrap();
    assert_eq!((detached.cgroups, detached.left), (vec![inner.clone()], vec![inner.clone()]));
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(folder_of(&inner).exists());
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
    let only_services = |only_services| Attachments {
        only_services: Some(only_services),
        ..callers(&place.cgroup, selection())
    };
    attach(&place.pins(), &only_services(true)).unwrap();
    is_refused();
    by_proxy(false, true);
    is_refused();
    let now = status(&place.pins()).unwrap();
    assert!(now.attachments[0].only_services && !now.only_services, "{now:?}");

    // Of the proxy, also after its end.
    attach(&place.pins(), &only_services(false)).unwrap();
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

/// The variable that names the pins to the process of a user without capabilities, and that which says that the maps are root's.
const PINS: &str = "FAIRMESH_TEST_PINS";
const NO_OWNER: &str = "FAIRMESH_TEST_NO_OWNER";
/// The user nobody.
const NOBODY: u32 = 65_534;

#[test]
fn the_owner_of_the_maps_needs_no_capability() {
    if let Some(pins) = std::env::var_os(PINS).map(PathBuf::from) {
        if std::env::var_os(NO_OWNER).is_some() {
            return is_told_to_name_the_owner(&pins);
        }
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
    for owner in [None, Some(NOBODY)] {
        let selection = Selection { ports: vec![1], ..Selection::default() };
        place.attach(&place.cgroup, selection, owner).unwrap();
        let nobody = format!("--reuid={NOBODY}");
        let mut command = Command::new("setpriv");
        command.args([&nobody, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "the_owner_of_the_maps_needs_no_capability", "--nocapture"]);
        if owner.is_none() {
            command.env(NO_OWNER, "1");
        }
        let output = match command.env(PINS, place.pins()).output() {
            Ok(output) => output,
            Err(error) => return skipped("setpriv takes capabilities away", error),
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Who may not open the maps must not be told to detach them.
fn is_told_to_name_the_owner(pins: &Path) {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusals = [
        status(pins).unwrap_err(),
        ProxyMaps::register(pins, &proxy, false).unwrap_err(),
        KernelSender::open(pins).unwrap_err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, KernelError::NoAccess(_)), "{refusal}");
        assert!(refusal.to_string().contains("--owner"), "{refusal}");
    }
}
