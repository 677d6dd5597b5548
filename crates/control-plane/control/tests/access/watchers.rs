//! Tests of what watchers say of themselves.

use fairmesh_model::Prefix;
use fairmesh_rib::{
    PeerInfo, PeerKind, Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::v1::{self, peer_info::Kind};
use tokio::time::timeout;

use super::{
    members::{TestMember, join, own, start_strict},
    support::{BOUND, TestControl},
};

/// A watcher that keeps nothing of what it is sent.
struct Forgetful;

impl Sink for Forgetful {
    const APPLIES_AT_ONCE: bool = true;

    fn update(&mut self, _: Update) {}

    fn refused(&mut self, _: &Prefix, _: &str) {}
}

/// Watches as an agent or replica with other roots and an address of its own.
fn describe(member: &TestMember, control: &TestControl, kind: PeerKind) -> FollowerHandle {
    let config = FollowerConfig {
        transport: member.transport(),
        addresses: vec![control.grpc[0].clone()],
        software: "agent payments-db".into(),
        backoff: Backoff::default(),
        refuse_lagging: false,
    };
    let handle = Follower::spawn(config, Forgetful);
    handle.set_peer_info(PeerInfo {
        kind,
        region: None,
        addresses: vec!["127.0.0.1:9".parse().unwrap()],
        version: None,
        roots: vec![[7; 32]],
    });
    handle.subscribe(Prefix::identity());
    handle
}

#[tokio::test]
async fn watcher_describes_itself_only_as_its_certificate_proves() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_strict(folder.path()).await;
    let agent = join(&control, "web-1", &[], "eu").await;
    let service = agent.issue(&control, "shop/cart").await.unwrap();
    let beside = join(&control, "rib-1", &[], "eu").await;
    let replica = beside.issue(&control, "fairmesh/replica/rib-1.eu").await.unwrap();
    let watches = [
        (&agent, PeerKind::Agent),
        (&agent, PeerKind::Replica),
        (&service, PeerKind::Agent),
        (&service, PeerKind::Replica),
        (&replica, PeerKind::Replica),
    ];
    let _watching = watches.map(|(member, kind)| describe(member, &control, kind));
    let operator = own(&control).await;
    let described = async {
        loop {
            let request = v1::WatchersRequest { prefix: Prefix::everything().to_string() };
            let watchers = operator.rib().watchers(request).await.unwrap().into_inner().watchers;
            let ours: Vec<_> =
                watchers.iter().filter(|watcher| watcher.software == "agent payments-db").collect();
            let described = ours.iter().filter(|watcher| watcher.peer.is_some()).count();
            if ours.len() == watches.len() && described >= 2 {
                let kinds = ours
                    .iter()
                    .filter_map(|watcher| Some((watcher.identity.clone(), watcher.peer.as_ref()?.kind())));
                return kinds.collect::<Vec<_>>();
            }
            tokio::task::yield_now().await;
        }
    };
    let mut described = timeout(BOUND, described).await.expect("both are described");
    described.sort();
    let expected = [
        ("spiffe://prod/fairmesh/agent/web-1".to_owned(), Kind::Agent),
        ("spiffe://prod/fairmesh/replica/rib-1.eu".to_owned(), Kind::Replica),
    ];
    assert_eq!(described, expected);
    control.stop().await;
}
