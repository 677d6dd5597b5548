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
    house::House,
    support::{Memory, Reader, SinkCall, copy, prefix},
};

const HOUR: Duration = Duration::from_secs(3600);

#[allow(clippy::disallowed_methods, reason = "the age of a file is about the time of day")]
fn an_hour_ago() -> SystemTime {
    SystemTime::now() - HOUR
}

fn save(house: &House, store: u128, number: u64, keys: &[&str]) {
    let entries =
        keys.iter().map(|key| ((*key).into(), Entry { value: Bytes::from_static(b"saved"), revision: 1 }));
    let saved = SavedCopy {
        prefix: prefix("/a/"),
        revision: Revision { store: StoreId(store), partition: 0, number },
        at: an_hour_ago(),
        entries: entries.collect(),
    };
    Cache::open(house.state()).unwrap().save(&saved).unwrap();
}

#[tokio::test]
async fn without_a_control_plane_the_agent_serves_what_it_saved_and_says_how_old_it_is() {
    let house = House::new();
    save(&house, 1, 1, &["/a/1", "/a/2"]);
    fs::write(house.state().join("damaged.copy"), "no copy at all").unwrap();
    let agent = house.agent();
    let mut reader = Reader::start(&[&house.socket], true);
    reader.handle.subscribe(prefix("/a/"));
    let update = reader.update().await;
    assert_eq!(reader.copy, copy(&[("/a/1", "saved"), ("/a/2", "saved")]));
    assert!(update.snapshots[0].age >= HOUR, "{:?}", update.snapshots[0].age);
    assert!(house.state().join("damaged.unreadable").exists(), "kept for whoever wants to know");

    let memory = Memory::new(1);
    memory.put(&[("/a/1", "saved"), ("/a/2", "saved")]);
    memory.put(&[("/a/2", "new")]);
    let control = house.control(&memory).await;
    let update = reader.update().await;
    assert_eq!((update.snapshots.len(), update.puts.len()), (0, 1), "only what it missed");
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn a_reader_that_resumes_at_an_agent_without_a_control_plane_is_told_how_old_its_copy_is() {
    let house = House::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let control = house.control(&memory).await;
    let agent = house.agent();
    let mut reader = Reader::following(&[&house.socket], &["/a/"]).await;
    agent.stop().await;
    control.stop().await;

    let agent = house.agent();
    let update = reader.update().await;
    assert_eq!((update.resumed.len(), update.snapshots.len()), (1, 0));
    assert!(update.resumed[0].age > Duration::ZERO, "{:?}", update.resumed[0].age);
    let control = house.control(&memory).await;
    assert_eq!(reader.age_update().await, Duration::ZERO, "told although nothing has changed");
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn readers_are_told_once_that_the_control_plane_is_lost_and_once_that_it_is_back() {
    let house = House::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/b/1", "x")]);
    let agent = house.agent();
    let mut control = house.control(&memory).await;
    let mut reader = Reader::following(&[&house.socket], &["/a/", "/b/"]).await;
    for round in 0..3 {
        control.stop().await;
        assert!(reader.age_update().await > Duration::ZERO);
        memory.put(&[("/a/1", &round.to_string())]);
        control = house.control(&memory).await;
        assert_eq!(reader.age_update().await, Duration::ZERO);
        while reader.copy["/a/1"] != round.to_string() {
            reader.update().await;
        }
        // A change that comes through comes after all that was said before it.
        memory.put(&[("/b/1", &round.to_string())]);
        while reader.copy["/b/1"] != round.to_string() {
            reader.update().await;
        }
        assert!(reader.no_more_age_updates(), "nothing is said while nothing changes");
    }
    agent.stop().await;
    control.stop().await;
}

#[tokio::test]
async fn what_changed_before_a_stop_is_there_after_it() {
    let house = House::new();
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x"), ("/b/1", "x")]);
    let control = house.control(&memory).await;
    let agent = house.agent();
    let mut reader = Reader::following(&[&house.socket], &["/a/", "/b/"]).await;
    for i in 0..20 {
        memory.put(&[("/a/1", &i.to_string())]);
    }
    while reader.copy["/a/1"] != "19" {
        reader.update().await;
    }
    agent.stop().await;
    control.stop().await;
    let saved = Cache::read_only(house.state()).load_all().unwrap();
    let numbers: Vec<_> = saved.iter().map(|saved| saved.revision.number).collect();
    assert_eq!(numbers, [21, 21], "also the one that has not changed since");

    let agent = house.agent();
    let fresh = Reader::following(&[&house.socket], &["/a/", "/b/"]).await;
    assert_eq!(fresh.copy, reader.copy);
    agent.stop().await;
}

#[tokio::test]
async fn saved_copies_of_another_store_are_replaced() {
    let house = House::new();
    save(&house, 9, 500, &["/a/1", "/a/old"]);
    let memory = Memory::new(1);
    memory.put(&[("/a/1", "new")]);
    let control = house.control(&memory).await;
    let agent = house.agent();
    let mut reader = Reader::following(&[&house.socket], &["/a/"]).await;
    while reader.copy != copy(&[("/a/1", "new")]) {
        reader.update().await;
    }
    agent.stop().await;
    control.stop().await;
    let saved = Cache::read_only(house.state()).load_all().unwrap();
    assert_eq!((saved.len(), saved[0].revision.store), (1, StoreId(1)));
}

#[tokio::test]
async fn two_agents_do_not_share_a_folder() {
    let house = House::new();
    let _other = Cache::open(house.state()).unwrap();
    let error = house.agent().ended().await.unwrap_err();
    assert!(matches!(error, AgentError::State(CacheError::InUse { .. })), "{error}");
}

#[tokio::test]
async fn programs_that_start_without_the_agent_find_beside_its_copies_where_it_runs() {
    let house = House::new();
    let agent = house.agent();
    let reader = Reader::start(&[&house.socket], true);
    reader.until(|state| state.connected).await;
    agent.stop().await;
    let eu = Location::in_region(Region::new("eu").unwrap());
    assert_eq!(Cache::read_only(house.state()).location().unwrap(), Some(eu));
}

#[tokio::test]
async fn what_nothing_is_held_of_is_refused_without_a_control_plane_and_had_when_it_is_back() {
    let house = House::new();
    save(&house, 1, 1, &["/a/1"]);
    let agent = house.agent();
    let mut reader = Reader::start(&[&house.socket], true);
    let ask = |reader: &Reader, text| {
        reader.handle.unsubscribe(&prefix(text));
        reader.handle.subscribe(prefix(text));
    };
    for _ in 0..2 {
        ask(&reader, "/new/");
        let SinkCall::Refused(refused, reason) = reader.got().await else {
            panic!("there is nothing to send")
        };
        assert_eq!(refused, prefix("/new/"));
        assert!(reason.contains("no control plane") && reason.contains("control.sock"), "{reason}");
    }
    ask(&reader, "/a/");
    assert_eq!(reader.update().await.snapshots.len(), 1, "what is held is served as ever");

    let memory = Memory::new(1);
    memory.put(&[("/a/1", "saved"), ("/new/1", "x")]);
    let control = house.control(&memory).await;
    assert_eq!(reader.age_update().await, Duration::ZERO);
    ask(&reader, "/new/");
    while reader.copy != copy(&[("/a/1", "saved"), ("/new/1", "x")]) {
        reader.update().await;
    }
    agent.stop().await;
    control.stop().await;
}
