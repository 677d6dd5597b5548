//! Callers in network namespaces of their own.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use fairmesh_kernel::{
    Attachments, CgroupState, CgroupWatch, Container, Counter, Ending, ProxyMaps, Selection, attach,
    end_attachment, enter_cgroup, is_attached, listening, status,
};
use fairmesh_test_support::{
    eventually_blocking,
    namespaces::{Namespace, is_installed},
    remove_cgroups, skipped,
};

use crate::place::{Place, callers, counted, enter, folder_of, greet};

/// Namespaces whose connections all come from port 41000 of 127.0.0.1.
fn namespaces(names: [&str; 2]) -> Option<[Namespace; 2]> {
    if !is_installed("ip") {
        skipped("network namespaces are made by ip", "it is missing");
        return None;
    }
    Some(names.map(|name| {
        let namespace = Namespace::new(name).unwrap();
        namespace.ip(&["link", "set", "lo", "up"]).unwrap();
        namespace.within(|| fs::write("/proc/sys/net/ipv4/ip_local_port_range", "41000 41000").unwrap());
        namespace
    }))
}

fn selection() -> Selection {
    Selection { networks: vec![([127, 96, 0, 0].into(), 16)], ports: vec![80] }
}

#[test]
fn callers_with_equal_addresses_have_their_own_destinations() {
    let Some(place) = Place::new("equal") else { return };
    let Some(namespaces) = namespaces(["equal-a", "equal-b"]) else { return };
    place.attach(&place.cgroup, selection(), None).unwrap();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let maps = ProxyMaps::register(&place.pins(), &proxy, false, None).unwrap();
    assert!(maps.add_listener(&proxy).is_err(), "the proxy's own namespace is none of a container");
    let listeners: Vec<_> = namespaces
        .iter()
        .map(|namespace| {
            // Not from the range of the callers' ports, which has one.
            let listener = namespace.within(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 42000)).unwrap());
            let cookie = maps.add_listener(&listener).unwrap();
            assert!(listening(&place.pins()).unwrap().namespaces.contains(&cookie));
            listener
        })
        .collect();
    assert_eq!(status(&place.pins()).unwrap().namespaces, 2);

    let to = [1, 2].map(|last| SocketAddr::from(([127, 96, 0, last], 80)));
    let peers: Vec<_> = thread::scope(|scope| {
        // Both connect before either destination is taken.
        let all = [0, 1].map(|at| {
            let accepted = scope.spawn({
                let listener = &listeners[at];
                move || greet(listener, "proxy")
            });
            let said = namespaces[at].within(|| place.connect(to[at]));
            assert_eq!(said, "proxy", "namespace {at}");
            accepted.join().unwrap()
        });
        all.to_vec()
    });
    assert_eq!(peers[0], peers[1], "the addresses are equal");
    for at in [0, 1] {
        let found = maps.take(&listeners[at], peers[at]).unwrap();
        assert_eq!(found.address, to[at]);
        assert!(found.only_services, "the proxy reaches other servers at the addresses of a container");
        assert!(maps.take(&listeners[at], peers[at]).is_none());
    }

    drop(listeners);
    assert_eq!(status(&place.pins()).unwrap().namespaces, 0, "a closed listener leaves the map");
    let before = counted(&place, Counter::NoProxy);
    let direct = namespaces[0].within(|| place.connect(to[0]));
    assert!(direct.contains("Connection refused"), "{direct}");
    assert_eq!(counted(&place, Counter::NoProxy), before + 1);
}

#[test]
fn containers_below_cgroup_are_found_and_listened_in() {
    let Some(place) = Place::new("found") else { return };
    let Some(namespaces) = namespaces(["found-a", "found-b"]) else { return };
    let id = place.attach(&place.cgroup, selection(), None).unwrap();
    let watch = CgroupWatch::new(&place.cgroup, id).unwrap().with_changes().unwrap();
    assert!(watch.find(|_| false).is_empty());
    assert_eq!(watch.state(), CgroupState::Empty);
    watch.has_changed();
    let mut programs: Vec<_> = namespaces
        .iter()
        .enumerate()
        .map(|(at, namespace)| {
            let script = format!("{} && exec cat", enter(&format!("{}/pod/{at}", place.cgroup)));
            namespace
                .within(|| Command::new("bash").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap())
        })
        .collect();
    eventually_blocking("the kernel tells of a cgroup", || watch.has_changed());
    let mut found = Vec::new();
    eventually_blocking("both containers are found", || {
        found = watch.find(|_| false);
        found.len() == 2
    });
    for container in &found {
        let (listener, cookie) = container.open_listener().unwrap();
        assert!(cookie > 0 && listener.local_addr().unwrap().ip() == Ipv4Addr::LOCALHOST);
        assert!(!container.shares_network_with(std::process::id()));
        assert!(container.cgroup().starts_with(&format!("{}/pod/", place.cgroup)), "{container:?}");
        assert!(programs.iter().any(|program| program.id() == container.pid()));
    }
    assert_eq!(watch.state(), CgroupState::Populated);
    let known = found[0].namespace();
    assert_eq!(watch.find(|namespace| namespace == known).len(), 1);
    assert!(Container::of(std::process::id()).unwrap().shares_network_with(std::process::id()));
    for program in &mut programs {
        program.kill().unwrap();
        program.wait().unwrap();
    }
    eventually_blocking("none is left", || watch.find(|_| false).is_empty());
    remove_cgroups(&place.cgroup);
    assert_eq!(watch.state(), CgroupState::Removed);
    fs::create_dir(folder_of(&place.cgroup)).unwrap();
    assert_eq!(watch.state(), CgroupState::Replaced, "a cgroup of the same path has another id");
}

/// Attaches to the cgroup as `attach --container` does.
fn attach_container(place: &Place, cgroup: &str) -> u64 {
    attach(&place.pins(), &Attachments { is_container: true, ..callers(cgroup, selection()) }).unwrap()
}

/// A program in the cgroup, until its standard input is closed.
fn program_in(cgroup: &str) -> Child {
    let script = format!("{} && echo in && exec cat", enter(cgroup));
    let mut command = Command::new("bash");
    command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    program.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    program
}

fn end(mut program: Child) {
    drop(program.stdin.take());
    program.wait().unwrap();
}

#[test]
fn container_cgroup_stays_attached_until_its_last_program_ends() {
    let Some(place) = Place::new("last") else { return };
    let [first, second] = [(); 2].map(|()| program_in(&place.cgroup));
    let id = attach_container(&place, &place.cgroup);
    let kept = format!("{}-kept", place.cgroup);
    let kept_id = place.attach(&kept, selection(), None).unwrap();
    assert_eq!(attach_container(&place, &kept), kept_id);
    end(first);
    assert_eq!(end_attachment(&place.pins(), id).unwrap(), Ending::Populated);
    assert!(is_attached(&place.pins(), id).unwrap());
    end(second);
    for id in [id, kept_id] {
        let mut ending = Ending::Populated;
        eventually_blocking("no program is left", || {
            ending = end_attachment(&place.pins(), id).unwrap();
            ending != Ending::Populated
        });
        assert_eq!(ending, Ending::Ended);
    }
    assert!(!is_attached(&place.pins(), id).unwrap());
    assert!(is_attached(&place.pins(), kept_id).unwrap(), "'attach --cgroup' has attached it before");
}

/// Environment variables for a program that moves to another cgroup with its connection: its cgroup, and the address that it
/// connects to.
const CGROUP: &str = "FAIRMESH_TEST_CGROUP";
const ADDRESS: &str = "FAIRMESH_TEST_ADDRESS";

#[test]
fn counted_connection_outlives_its_cgroup_and_leaves_no_count() {
    if let Ok(cgroup) = env::var(CGROUP) {
        let to = env::var(ADDRESS).unwrap().parse().unwrap();
        enter_cgroup(&cgroup).unwrap();
        // Sockets that block are not counted.
        let _connection = TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap();
        enter_cgroup(&format!("{cgroup}-elsewhere")).unwrap();
        println!("connected");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let Some(place) = Place::new("counted") else { return };
    let id = attach_container(&place, &place.cgroup);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let _maps = ProxyMaps::register(&place.pins(), &proxy, false, None).unwrap();
    let mut program = Command::new(env::current_exe().unwrap());
    program.args(["--exact", "containers::counted_connection_outlives_its_cgroup_and_leaves_no_count"]);
    program.arg("--nocapture").env(CGROUP, &place.cgroup).env(ADDRESS, "127.96.7.9:80");
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("connected")));
    let connections = || status(&place.pins()).unwrap().attachments[0].connections;
    assert_eq!(connections(), 1);
    assert_eq!(end_attachment(&place.pins(), id).unwrap(), Ending::Connected);
    // Another cgroup gets counters of its own, and removes nothing that counts.
    let other = format!("{}-other", place.cgroup);
    attach_container(&place, &other);
    assert_eq!(status(&place.pins()).unwrap().attachments.len(), 2);

    end(program);
    drop(proxy.accept().unwrap());
    eventually_blocking("the connection counts no more", || connections() == 0);
    // As if no command followed it.
    place.attach(&format!("{other}-next"), selection(), None).unwrap();
    let left: Vec<_> = status(&place.pins()).unwrap().attachments.into_iter().map(|one| one.cgroup).collect();
    assert_eq!(left, [format!("{other}-next")], "the cgroups of ended containers are detached");
}
