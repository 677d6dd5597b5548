//! Nested cgroups.

use std::{
    net::{SocketAddr, TcpListener},
    thread,
};

use fairmesh_kernel::{Attachments, Counter, ProxyMaps, Selection, attach};

use crate::place::{Place, callers, counted, greet};

#[test]
fn nested_cgroup_has_its_own_kernel_programs() {
    let Some(place) = Place::new("within") else { return };
    let server = TcpListener::bind("127.96.7.3:0").unwrap();
    let to = server.local_addr().unwrap();
    let selection = || Selection { networks: vec![([127, 96, 0, 0].into(), 16)], ports: vec![to.port()] };
    let inner = format!("{}/inner", place.cgroup);
    place.attach(&place.cgroup, selection(), None).unwrap();
    place.attach(&inner, selection(), None).unwrap();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let maps = ProxyMaps::register(&place.pins(), &proxy, false, None).unwrap();
    for from in [&place.cgroup, &inner] {
        thread::scope(|scope| {
            let accepted = scope.spawn(|| greet(&proxy, "proxy"));
            assert_eq!(Place::connect_from(from, to), "proxy");
            let caller = accepted.join().unwrap();
            assert_eq!(maps.take(&proxy, caller).map(|found| found.address), Some(to), "{from}");
        });
    }
    assert_eq!(counted(&place, Counter::Redirected), 2);
}

/// `only_services` of each nested cgroup applies to its own programs, regardless of the other cgroup's
/// setting.
#[test]
fn nested_cgroup_has_its_own_only_services_option() {
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
        // Without a proxy, a refusal by either cgroup applies.
        let before = counted(&place, Counter::Refused);
        assert!(Place::connect_from(&inner, to).contains("Connection refused"));
        assert_eq!(counted(&place, Counter::Refused), before + 1, "outer {outer}");
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let maps = ProxyMaps::register(&place.pins(), &proxy, false, None).unwrap();
        for (from, expected) in [(&place.cgroup, outer), (&inner, !outer)] {
            thread::scope(|scope| {
                let accepted = scope.spawn(|| greet(&proxy, "proxy"));
                assert_eq!(Place::connect_from(from, to), "proxy");
                let caller = accepted.join().unwrap();
                let found = maps.take(&proxy, caller).map(|found| found.only_services);
                assert_eq!(found, Some(expected), "{from}, outer {outer}");
            });
        }
    }
}
