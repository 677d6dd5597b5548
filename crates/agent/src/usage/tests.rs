use fairmesh_model::{Prefix, Region};
use fairmesh_rib::{
    Update,
    follower::{Backoff, Follower, FollowerConfig, Sink},
};
use fairmesh_wire::transport::Address;

use super::*;

fn key(minute: u32, instance: &str) -> Key {
    (Minute(minute), ServiceName::new("shop/cart").unwrap(), InstanceId::new(instance).unwrap())
}

fn usage(minute: u32, covered_ms: u32) -> v1::MinuteUsage {
    v1::MinuteUsage { minute, cpu_us: 1, covered_ms, limit_millicores: 0, requests: 0 }
}

fn eu() -> Location {
    Location::in_region(Region::new("eu").unwrap())
}

#[test]
fn what_grew_while_it_was_sent_waits_on_and_what_arrived_does_not() {
    let mut waiting = Waiting::default();
    waiting.put(key(5, "a"), eu(), usage(5, 10_000));
    waiting.put(key(5, "b"), eu(), usage(5, 10_000));
    let batch = waiting.batch();
    waiting.put(key(5, "a"), eu(), usage(5, 20_000));
    waiting.put(key(5, "b"), eu(), usage(5, 5_000));
    waiting.arrived(&batch);
    let left: Vec<_> = waiting.batch().into_iter().map(|(key, _, usage)| (key, usage.covered_ms)).collect();
    assert_eq!(left, [(key(5, "a"), 20_000)]);
}

/// Follows nobody, since what is sent is passed to the test.
struct Nothing;

impl Sink for Nothing {
    fn update(&mut self, _: Update) {}
    fn refused(&mut self, _: &Prefix, _: &str) {}
}

fn usages() -> Usages {
    let config = FollowerConfig {
        addresses: vec![Address::Unix("/nowhere/control.sock".into())],
        software: "test".to_owned(),
        backoff: Backoff::default(),
        refuse_lagging: true,
    };
    Usages::new(Follower::spawn(config, Nothing), "nowhere".to_owned())
}

#[tokio::test]
async fn a_minute_that_is_refused_as_wrong_is_given_up_and_holds_up_nobody() {
    let usages = usages();
    for minute in 0..100 {
        usages.lock().put(key(minute, "a"), eu(), usage(minute, 60_000));
    }
    let wrong = |usage: &v1::InstanceUsage| [30, 77].contains(&usage.minutes[0].minute);
    let (taken, sent) = (Mutex::new(Vec::new()), AtomicU64::default());
    let batch = usages.lock().batch();
    let answer = |request: v1::ReportUsageRequest| {
        sent.fetch_add(1, Relaxed);
        let answer = if request.usages.iter().any(wrong) {
            Err(Status::invalid_argument("usages[0]: location: is missing"))
        } else {
            taken.lock().unwrap().extend(request.usages.iter().map(|usage| usage.minutes[0].minute));
            Ok(())
        };
        async move { answer }
    };
    usages.deliver(batch, answer).await.unwrap();
    let expected: Vec<_> = (0..100).filter(|minute| ![30, 77].contains(minute)).collect();
    assert_eq!(*taken.lock().unwrap(), expected, "each once, the oldest first");
    assert_eq!((usages.waiting(), usages.refused().load(Relaxed)), (0, 2));
    assert!(sent.load(Relaxed) < 30, "in few messages");
}

#[tokio::test]
async fn what_cannot_be_passed_on_for_now_waits() {
    let usages = usages();
    usages.lock().put(key(1, "a"), eu(), usage(1, 60_000));
    let batch = usages.lock().batch();
    let away = |_| async { Err(Status::unavailable("starting")) };
    usages.deliver(batch, away).await.unwrap_err();
    assert_eq!((usages.waiting(), usages.refused().load(Relaxed)), (1, 0));
}

#[test]
fn when_too_much_waits_the_oldest_is_given_up_and_counted() {
    let mut waiting = Waiting::default();
    let mut dropped = 0;
    for minute in 0..u32::try_from(MAX_WAITING).unwrap() + 7 {
        dropped += waiting.put(key(minute, "a"), eu(), usage(minute, 60_000));
    }
    assert_eq!((dropped, waiting.0.len()), (7, MAX_WAITING));
    assert_eq!(waiting.batch()[0].0, key(7, "a"));
    assert_eq!(waiting.batch().len(), MAX_BATCH);
}
