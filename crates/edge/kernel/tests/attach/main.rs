//! Programs attached to a cgroup of the test, with virtual addresses of this machine.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod again;
mod containers;
mod nested;
mod owner;
mod place;
mod refused;

use std::{
    io::Read as _,
    net::TcpListener,
    process::{self, Command, Stdio},
    thread,
};

use aya::maps::{Array, Map, MapData};
use fairmesh_kernel::{
    Attachments, Counter, KernelError, KernelSender, Policy, ProxyMaps, Selection, attach, detach, status,
};
use fairmesh_router::{CandidateNumbers, RouteNumbers, ServiceNumbers};

use crate::place::{Place, callers, counted, enter, folder_of, greet};

#[test]
fn kernel_redirects_connections_until_proxy_closes_or_detach() {
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
    let maps = ProxyMaps::register(&place.pins(), &proxy, false, None).unwrap();
    assert_eq!(status(&place.pins()).unwrap().proxy, Some(process::id()));
    thread::scope(|scope| {
        let accepted = scope.spawn(|| greet(&proxy, "proxy"));
        assert_eq!(place.connect(to), "proxy");
        let caller = accepted.join().unwrap();
        assert_eq!(maps.take(&proxy, caller).unwrap().address, to);
        assert!(maps.take(&proxy, caller).is_none(), "a destination is taken once");
    });
    assert_eq!(counted(&place, Counter::Redirected), 1);

    // The maps stay open, as in a proxy that is about to exit.
    drop(proxy);
    direct();
    assert_eq!(status(&place.pins()).unwrap().proxy, None);

    let detached = detach(&place.pins()).unwrap();
    assert_eq!((detached.cgroups, detached.left), (vec![place.cgroup.clone()], Vec::new()));
    assert!(!place.pins().exists());
    assert!(matches!(status(&place.pins()), Err(KernelError::NotAttached(_))));
}

#[test]
fn detach_removes_created_cgroups_and_names_ones_still_in_use() {
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
fn kernel_maps_of_another_release_are_refused_until_detached() {
    let Some(place) = Place::new("release") else { return };
    place.attach(&place.cgroup, Selection::default(), None).unwrap();
    let map = MapData::from_pin(place.pins().join("layout")).and_then(Map::from_map_data).unwrap();
    Array::try_from(map).unwrap().set(0, 1_u64, 0).unwrap();

    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusals = [
        place.attach(&place.cgroup, Selection::default(), None).unwrap_err(),
        status(&place.pins()).unwrap_err(),
        ProxyMaps::register(&place.pins(), &proxy, false, None).unwrap_err(),
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
fn only_services_mode_refuses_connections_when_no_proxy_listens() {
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
        let maps = ProxyMaps::register(&place.pins(), &proxy, only_services, None).unwrap();
        thread::scope(|scope| {
            let accepted = scope.spawn(|| greet(&proxy, "proxy"));
            assert_eq!(place.connect(to), "proxy");
            assert_eq!(maps.take(&proxy, accepted.join().unwrap()).unwrap().only_services, expected);
        });
    };
    // The cgroup's setting also applies before the first proxy.
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

    // The proxy's setting also applies after its end.
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
fn attach_keeps_other_programs_attached() {
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

#[test]
fn thousand_services_of_twenty_endpoints_fit_into_64_mib() {
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
