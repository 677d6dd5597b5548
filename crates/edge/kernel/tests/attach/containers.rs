//! Callers in network namespaces of their own.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Command, Stdio},
    thread,
};

use fairmesh_kernel::{CgroupWatch, Container, Counter, ProxyMaps, Selection, listening, status};
use fairmesh_test_support::{
    eventually_blocking,
    namespaces::{Namespace, is_installed},
    skipped,
};

use crate::place::{Place, counted, enter, greet};

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
    let maps = ProxyMaps::register(&place.pins(), &proxy, false).unwrap();
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
    let callers: Vec<_> = thread::scope(|scope| {
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
    assert_eq!(callers[0], callers[1], "the addresses are equal");
    for at in [0, 1] {
        let found = maps.take(&listeners[at], callers[at]).unwrap();
        assert_eq!(SocketAddr::from(found.address), to[at]);
        assert!(found.only_services, "the proxy reaches other servers at the addresses of a container");
        assert!(maps.take(&listeners[at], callers[at]).is_none());
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
    let watch = CgroupWatch::open(&place.cgroup).unwrap();
    assert!(watch.find(|_| false).is_empty() && watch.exists());
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
    let known = found[0].namespace();
    assert_eq!(watch.find(|namespace| namespace == known).len(), 1);
    assert!(Container::of(std::process::id()).unwrap().shares_network_with(std::process::id()));
    for program in &mut programs {
        program.kill().unwrap();
        program.wait().unwrap();
    }
    eventually_blocking("none is left", || watch.find(|_| false).is_empty());
}
