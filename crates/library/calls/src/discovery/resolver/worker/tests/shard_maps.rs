//! Versions of large shard maps, and what is acknowledged while they are pending.

use super::*;

/// Returns a shard map, and the record with its version and size.
fn large(version: u64) -> (Arc<ShardTable>, (Arc<str>, Entry)) {
    let shard = Shard { id: ShardId(1), start: ShardKey(0), replicas: vec![] };
    let map = ShardMap { version, interval: KeyRange::ALL, shards: vec![shard] };
    let key = RecordKey::ShardManifest(name(), ShardPart::Ranges);
    let manifest = v1::ShardManifest::decode(encode_map(&name(), &map).remove(&key).unwrap()).unwrap();
    let value = v1::ShardManifest { shards: LARGE, ..manifest }.encode_to_vec().into();
    (Arc::new(ShardTable::compile(&map)), (key.to_string().into(), Entry { value, revision: version }))
}

impl Rig {
    /// Announces a version of the large map, at a revision ten times its number.
    fn announce(&mut self, version: u64) {
        let revision = Revision { number: 10 * version, ..revision() };
        self.handle(Event::Update(Update { puts: vec![large(version).1], ..Update::empty(revision) }));
    }

    fn share(&mut self, version: u64) {
        let name = MapName { service: name(), region: None };
        self.handle(Event::Map(MapEvent::Map(name, large(version).0)));
    }

    fn applied(&self) -> Option<u64> {
        self.worker.applied().map(|at| at.number)
    }
}

#[tokio::test(start_paused = true)]
async fn frequent_shard_map_versions_do_not_delay_other_acknowledgements() {
    let mut rig = rig();
    let (maps, _asked) = tokio::sync::mpsc::unbounded_channel();
    rig.worker.maps = Some(maps);
    let _subscription = rig.follow();
    let (service, policy) = (RecordKey::Service(name()), RecordKey::Policy(name()));
    let declared = Service {
        kind: ServiceKind::Sharded,
        protocol: Protocol::Http2,
        virtual_address: None,
        identity: None,
    };
    rig.handle(Event::Update(update([
        (Prefix::topology(), vec![]),
        (Prefix::from(&service), vec![entry(&service, declared)]),
        (Prefix::from(&policy), vec![]),
        (Prefix::endpoints(&name(), None), vec![]),
    ])));
    rig.announce(1);
    rig.share(1);
    assert_eq!(rig.applied(), Some(10));
    // The table in use is always one version behind, and sometimes several.
    for version in 2..10 {
        rig.announce(version);
        assert_eq!(rig.applied(), Some(10 * (version - 1)), "all but the last version is in use");
        rig.announce(version + 1);
        assert_eq!(rig.applied(), Some(10 * (version - 1)), "two are not in use");
        rig.share(version);
        assert_eq!(rig.applied(), Some(10 * version));
    }
    // Even with too many pending versions, nothing is acknowledged too early.
    (11..200).for_each(|version| rig.announce(version));
    assert_eq!(rig.applied(), Some(90));
    rig.share(100);
    assert!(rig.applied().is_some_and(|at| (90..=1000).contains(&at)), "{:?}", rig.applied());
    rig.announce(200);
    rig.share(199);
    assert_eq!(rig.applied(), Some(1990));
    rig.share(200);
    assert_eq!(rig.applied(), Some(2000));
}
