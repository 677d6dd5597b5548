use std::{
    fs,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fairmesh_agent::AgentError;
use fairmesh_model::{Location, Region, Revision, StoreId};
use fairmesh_rib::{
    Entry,
    cache::{Cache, CacheError, SavedCopy},
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
async fn without_a_control_plane_the_agent_serves_saved_copies_with_their_age() {
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
async fn a_reader_that_resumes_without_a_control_plane_gets_the_age_of_its_copy() {
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
async fn readers_are_notified_once_of_each_loss_and_return_of_the_control_plane() {
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
async fn changes_before_a_stop_are_saved() {
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
async fn saved_copies_of_another_store_are_replaced() {
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
async fn copy_of_the_last_use_is_served_while_the_control_plane_is_away() {
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
async fn two_agents_cannot_share_a_state_directory() {
    let fixture = AgentFixture::new();
    let _other = Cache::open(fixture.state()).unwrap();
    let error = fixture.agent().ended().await.unwrap_err();
    assert!(matches!(error, AgentError::State(CacheError::InUse { .. })), "{error}");
}

#[tokio::test]
async fn agent_location_is_saved_for_programs_that_start_without_the_agent() {
    let fixture = AgentFixture::new();
    let agent = fixture.agent();
    let reader = Reader::start(&[&fixture.socket], true);
    reader.until(|state| state.connected).await;
    agent.stop().await;
    let eu = Location::in_region(Region::new("eu").unwrap());
    assert_eq!(Cache::read_only(fixture.state()).location().unwrap(), Some(eu));
}

#[tokio::test]
async fn an_uncached_prefix_is_refused_until_the_control_plane_is_back() {
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
