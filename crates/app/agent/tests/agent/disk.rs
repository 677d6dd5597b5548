use std::{
    fs,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fairmesh_agent::AgentError;
use fairmesh_model::{Location, Region, Revision, StoreId};
use fairmesh_rib::{
    Entry,
    disk_cache::{Cache, CacheError, SavedCopy},
};

use crate::{
    fixture::AgentFixture,
    support::{Memory, Reader, SinkCall, copy, prefix},
};

const HOUR: Duration = Duration::from_secs(3600);

#[allow(clippy::disallowed_methods, reason = "file ages are relative to the wall clock")]
fn an_hour_ago() -> SystemTime {
    SystemTime::now() - HOUR
}

fn save(fixture: &AgentFixture, store: u128, number: u64, keys: &[&str]) {
    let entries =
        keys.iter().map(|key| ((*key).into(), Entry { value: Bytes::from_static(b"saved"), revision: 1 }));
    let saved = SavedCopy {
        prefix: prefix("/a/"),
        revision: Revision { store: StoreId(store), partition: 0, number },
        at: an_hour_ago(),
        entries: entries.collect(),
    };
    Cache::open(fixture.state()).unwrap().save(&saved).unwrap();
}

#[tokio::test]
async fn agent_without_control_plane_serves_saved_copies_and_their_age() {
    let fixture = AgentFixture::new();
    save(&fixture, 1, 1, &["/a/1", "/a/2"]);
    fs::write(fixture.state().join("damaged.copy"), "no copy at all").unwrap();
    let agent = fixture.agent();
    let mut reader = Reader::start(&[&fixture.socket], true);
    reader.handle.subscribe(prefix("/a/"));
    let update = reader.update().await;
    assert_eq!(reader.copy, copy(&[("/a/1", "saved"), ("/a/2", "saved")]));
    assert!(update.snapshots[0].age >= HOUR, "{:?}", update.snapshots[0].age);
    assert!(fixture.state().join("damaged.unreadable").exists(), "kept for diagnosis");

    let memory = Memory::new(1);
    memory.put(&[("/a/1", "saved"), ("/a/2", "saved")]);
    memory.put(&[("/a/2", "new")]);
    let control = fixture.control(&memory).await;
    let update = reader.update().await;
    assert_eq!((update.snapshots.len(), update.puts.len()), (0, 1), "only the missed change");
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn resuming_reader_is_told_age_of_agents_copy_without_control_plane() {
    let fixture = AgentFixture::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let control = fixture.control(&memory).await;
    let agent = fixture.agent();
    let mut reader = Reader::following(&[&fixture.socket], &["/a/"]).await;
    agent.stop().await;
    control.stop().await;

    let agent = fixture.agent();
    let update = reader.update().await;
    assert_eq!((update.resumed.len(), update.snapshots.len()), (1, 0));
    assert!(update.resumed[0].age > Duration::ZERO, "{:?}", update.resumed[0].age);
    let control = fixture.control(&memory).await;
    assert_eq!(reader.age_update().await, Duration::ZERO, "sent although no record has changed");
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn readers_are_notified_once_per_control_plane_loss_and_return() {
    let fixture = AgentFixture::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/b/1", "x")]);
    let agent = fixture.agent();
    let mut control = fixture.control(&memory).await;
    let mut reader = Reader::following(&[&fixture.socket], &["/a/", "/b/"]).await;
    for round in 0..3 {
        control.stop().await;
        assert!(reader.age_update().await > Duration::ZERO);
        memory.put(&[("/a/1", &round.to_string())]);
        control = fixture.control(&memory).await;
        assert_eq!(reader.age_update().await, Duration::ZERO);
        while reader.copy["/a/1"] != round.to_string() {
            reader.update().await;
        }
        // A change arrives after all earlier messages.
        memory.put(&[("/b/1", &round.to_string())]);
        while reader.copy["/b/1"] != round.to_string() {
            reader.update().await;
        }
        assert!(reader.no_more_age_updates(), "no message without a change");
    }
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn agent_saves_last_changes_when_it_stops() {
    let fixture = AgentFixture::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/b/1", "x")]);
    let control = fixture.control(&memory).await;
    let agent = fixture.agent();
    let mut reader = Reader::following(&[&fixture.socket], &["/a/", "/b/"]).await;
    for i in 0..20 {
        memory.put(&[("/a/1", &i.to_string())]);
    }
    while reader.copy["/a/1"] != "19" {
        reader.update().await;
    }
    agent.stop().await;
    control.stop().await;
    let saved = Cache::read_only(fixture.state()).load_all().unwrap();
    let numbers: Vec<_> = saved.iter().map(|saved| saved.revision.number).collect();
    assert_eq!(numbers, [21, 21], "also the prefix without a change");

    let agent = fixture.agent();
    let fresh = Reader::following(&[&fixture.socket], &["/a/", "/b/"]).await;
    assert_eq!(fresh.copy, reader.copy);
    agent.stop().await;
}

#[tokio::test]
async fn saved_agent_copies_of_another_store_are_replaced() {
    let fixture = AgentFixture::new();
    save(&fixture, 9, 500, &["/a/1", "/a/old"]);
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "new")]);
    let control = fixture.control(&memory).await;
    let agent = fixture.agent();
    let mut reader = Reader::following(&[&fixture.socket], &["/a/"]).await;
    while reader.copy != copy(&[("/a/1", "new")]) {
        reader.update().await;
    }
    agent.stop().await;
    control.stop().await;
    let saved = Cache::read_only(fixture.state()).load_all().unwrap();
    assert_eq!((saved.len(), saved[0].revision.store), (1, StoreId(1)));
}

#[tokio::test]
async fn retired_prefix_copy_is_served_while_control_plane_is_unreachable() {
    let fixture = AgentFixture::new();
    save(&fixture, 1, 1, &["/a/1"]);
    Cache::open(fixture.state()).unwrap().retire(&prefix("/a/")).unwrap();
    let agent = fixture.agent();
    let mut reader = Reader::start(&[&fixture.socket], true);
    reader.handle.subscribe(prefix("/a/"));
    let update = reader.update().await;
    assert_eq!(reader.copy, copy(&[("/a/1", "saved")]));
    assert!(update.snapshots[0].age >= HOUR, "{:?}", update.snapshots[0].age);

    let memory = Memory::new(1);
    memory.put(&[("/a/1", "saved")]);
    memory.put(&[("/a/1", "new")]);
    let control = fixture.control(&memory).await;
    while reader.copy != copy(&[("/a/1", "new")]) {
        reader.update().await;
    }
    agent.stop().await;
    control.stop().await;
    let saved = Cache::read_only(fixture.state()).load_all().unwrap();
    assert_eq!(saved.len(), 1, "it is followed again");
}

#[tokio::test]
async fn second_agent_cannot_use_same_state_directory() {
    let fixture = AgentFixture::new();
    let _other = Cache::open(fixture.state()).unwrap();
    let error = fixture.agent().ended().await.unwrap_err();
    assert!(matches!(error, AgentError::State(CacheError::InUse { .. })), "{error}");
}

#[tokio::test]
async fn agent_location_is_saved_for_programs_starting_without_agent() {
    let fixture = AgentFixture::new();
    let agent = fixture.agent();
    let reader = Reader::start(&[&fixture.socket], true);
    reader.until(|state| state.connected).await;
    agent.stop().await;
    let eu = Location::in_region(Region::new("eu").unwrap());
    assert_eq!(Cache::read_only(fixture.state()).location().unwrap(), Some(eu));
}

#[tokio::test]
async fn uncached_prefix_is_refused_until_control_plane_returns() {
    let fixture = AgentFixture::new();
    save(&fixture, 1, 1, &["/a/1"]);
    let agent = fixture.agent();
    let mut reader = Reader::start(&[&fixture.socket], true);
    let resubscribe = |reader: &Reader, text| {
        reader.handle.unsubscribe(&prefix(text));
        reader.handle.subscribe(prefix(text));
    };
    for _ in 0..2 {
        resubscribe(&reader, "/new/");
        let SinkCall::Refused(refused, reason) = reader.got().await else { panic!("expected a refusal") };
        assert_eq!(refused, prefix("/new/"));
        assert!(reason.contains("no control plane") && reason.contains("control.sock"), "{reason}");
    }
    resubscribe(&reader, "/a/");
    assert_eq!(reader.update().await.snapshots.len(), 1, "a saved copy is still served");

    let memory = Memory::new(1);
    memory.put(&[("/a/1", "saved"), ("/new/1", "x")]);
    let control = fixture.control(&memory).await;
    assert_eq!(reader.age_update().await, Duration::ZERO);
    resubscribe(&reader, "/new/");
    while reader.copy != copy(&[("/a/1", "saved"), ("/new/1", "x")]) {
        reader.update().await;
    }
    agent.stop().await;
    control.stop().await;
}
