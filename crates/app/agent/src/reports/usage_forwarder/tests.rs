use fairmesh_model::Region;

use super::*;
use crate::reports::tests::absent;

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
fn usage_report_that_grows_while_sent_stays_queued() {
    let mut queue = UsageQueue::default();
    queue.put(key(5, "a"), eu(), usage(5, 10_000));
    queue.put(key(5, "b"), eu(), usage(5, 10_000));
    let batch = queue.batch();
    queue.put(key(5, "a"), eu(), usage(5, 20_000));
    queue.put(key(5, "b"), eu(), usage(5, 5_000));
    queue.remove_delivered(&batch);
    let left: Vec<_> = queue.batch().into_iter().map(|(key, _, usage)| (key, usage.covered_ms)).collect();
    assert_eq!(left, [(key(5, "a"), 20_000)]);
}

fn usages() -> UsageForwarder {
    UsageForwarder::new(absent())
}

#[tokio::test]
async fn rejected_usage_minute_is_dropped_and_blocks_no_other() {
    let usages = usages();
    for minute in 0..100 {
        usages.lock().put(key(minute, "a"), eu(), usage(minute, 60_000));
    }
    let wrong = |usage: &v1::InstanceUsage| [30, 77].contains(&usage.minutes[0].minute);
    let (accepted, sent) = (Mutex::new(Vec::new()), AtomicU64::default());
    let batch = usages.lock().batch();
    let respond = |request: v1::ReportSignalsRequest| {
        sent.fetch_add(1, Relaxed);
        let respond = if request.usages.iter().any(wrong) {
            Err(Status::invalid_argument("usages[0]: location: is missing"))
        } else {
            accepted.lock().unwrap().extend(request.usages.iter().map(|usage| usage.minutes[0].minute));
            Ok(())
        };
        async move { respond }
    };
    usages.send_all(batch, respond).await.unwrap();
    let expected: Vec<_> = (0..100).filter(|minute| ![30, 77].contains(minute)).collect();
    assert_eq!(*accepted.lock().unwrap(), expected, "each once, oldest first");
    assert_eq!((usages.queued(), usages.refused().load(Relaxed)), (0, 2));
    assert!(sent.load(Relaxed) < 30, "in few messages");
}

#[tokio::test]
async fn usage_reports_stay_queued_while_upstream_is_unavailable() {
    let usages = usages();
    usages.lock().put(key(1, "a"), eu(), usage(1, 60_000));
    let batch = usages.lock().batch();
    let away = |_| async { Err(Status::unavailable("starting")) };
    usages.send_all(batch, away).await.unwrap_err();
    assert_eq!((usages.queued(), usages.refused().load(Relaxed)), (1, 0));
}

#[test]
fn full_usage_queue_drops_and_counts_oldest_reports() {
    let mut queue = UsageQueue::default();
    let mut dropped = 0;
    for minute in 0..u32::try_from(MAX_QUEUED).unwrap() + 7 {
        dropped += queue.put(key(minute, "a"), eu(), usage(minute, 60_000));
    }
    assert_eq!((dropped, queue.0.len()), (7, MAX_QUEUED));
    assert_eq!(queue.batch()[0].0, key(7, "a"));
    assert_eq!(queue.batch().len(), MAX_BATCH);
}
