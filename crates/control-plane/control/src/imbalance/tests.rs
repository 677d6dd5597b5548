use std::fs;

use fairmesh_imbalance::{Area, Breakdown, Dimension, Tier};
use fairmesh_model::{HostType, InstanceId, Location, Region, ServiceName};

use super::*;

/// A minute within an hour and a day, so that both include more than the recorded minutes.
const START: Minute = Minute(28_000_000);

fn later(minutes: u32) -> Minute {
    Minute(START.0 + minutes)
}

fn service() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

fn record(
    imbalance: &Imbalance,
    (service, instance, location): (&ServiceName, &str, &Location),
    usage: (Minute, Usage),
    now: Minute,
) -> AddOutcome {
    let instance = InstanceId::new(instance).unwrap();
    imbalance.record(MeasuredInstance { service, instance: &instance, location }, usage, now)
}

/// Reports that an instance used `millicores` for all of a minute.
fn report_usage(
    imbalance: &Imbalance,
    instance: &str,
    minute: Minute,
    millicores: u64,
    now: Minute,
) -> AddOutcome {
    let place = Location {
        host_type: Some(HostType::new("old").unwrap()),
        ..Location::in_region(Region::new("eu").unwrap())
    };
    let usage =
        Usage { cpu_us: millicores * 60_000, covered_ms: 60_000, limit_millicores: 0, requests: 1_000 };
    record(imbalance, (&service(), instance, &place), (minute, usage), now)
}

async fn wasted(imbalance: &Imbalance, window: u32, now: Minute) -> (u64, Area) {
    let query = ReportQuery { service: None, tenant: None, by: Breakdown::Service, window };
    let report = imbalance.report(&query, now).await.unwrap();
    (report.minutes, report.total)
}

/// The expected sum for two containers; one uses twice as much as the other.
fn pair(minutes: u64) -> Area {
    Area { containers: 2 * minutes, used: 3_000 * minutes, peak: 4_000 * minutes }
}

#[tokio::test]
async fn imbalance_restart_keeps_saved_minutes_and_counts_none_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imbalance.redb");
    let first = Imbalance::start(&path).await;
    for minute in 0..3 {
        report_usage(&first, "a", later(minute), 2_000, later(minute));
        report_usage(&first, "b", later(minute), 1_000, later(minute));
    }
    first.save_and_close(later(2)).await.unwrap();
    report_usage(&first, "a", later(3), 2_000, later(3));
    assert_eq!(wasted(&first, 60, later(3)).await.0, 4);
    drop(first);

    // Unsaved minutes are lost. The agent sends them again, together with some of the saved ones.
    let second = Imbalance::start(&path).await;
    assert_eq!(wasted(&second, 60, later(3)).await, (3, pair(3)));
    assert_eq!(report_usage(&second, "b", later(2), 1_000, later(3)), AddOutcome::Known);
    assert_eq!(report_usage(&second, "a", later(3), 2_000, later(3)), AddOutcome::Counted);
    assert_eq!(report_usage(&second, "b", later(3), 1_000, later(3)), AddOutcome::Counted);
    assert_eq!(wasted(&second, 60, later(3)).await, (4, pair(4)));

    // Closed after the restart: counted once in every tier.
    second.save_and_close(later(40)).await.unwrap();
    second.save_and_close(later(40)).await.unwrap();
    drop(second);
    let third = Imbalance::start(&path).await;
    assert_eq!(third.open().minutes(), []);
    for window in [60, 24 * 60, 30 * 24 * 60] {
        assert_eq!(wasted(&third, window, later(41)).await, (4, pair(4)), "window of {window} minutes");
    }
    // The same holds after the clock was set back.
    assert_eq!(report_usage(&third, "a", later(3), 2_000, later(3)), AddOutcome::Late);
    assert_eq!(wasted(&third, 24 * 60, later(41)).await, (4, pair(4)));
}

#[tokio::test]
async fn imbalance_crash_while_closing_minute_counts_each_service_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imbalance.redb");
    let first = Imbalance::start(&path).await;
    report_usage(&first, "a", later(0), 2_000, later(0));
    report_usage(&first, "b", later(0), 1_000, later(0));
    let (other, place) =
        (ServiceName::new("shop/pay").unwrap(), Location::in_region(Region::new("eu").unwrap()));
    let usage = Usage { cpu_us: 60_000_000, covered_ms: 60_000, ..Usage::default() };
    record(&first, (&other, "p", &place), (later(0), usage), later(0));
    first.save_and_close(later(0)).await.unwrap();
    // Closes one of the two services.
    let rows = first.open().rows(later(0)).into_iter().filter(|(name, _)| *name == service()).collect();
    let history = first.history.as_ref().unwrap();
    history.close_services(later(0), rows).await.unwrap();
    drop(first);

    let second = Imbalance::start(&path).await;
    assert_eq!(
        report_usage(&second, "c", later(0), 9_000, later(1)),
        AddOutcome::Late,
        "the service's minute is closed"
    );
    second.save_and_close(later(30)).await.unwrap();
    for window in [60, 24 * 60] {
        let (_, total) = wasted(&second, window, later(30)).await;
        assert_eq!((total.containers, total.used), (3, 4_000), "window of {window} minutes");
    }
}

#[tokio::test]
async fn imbalance_write_failure_at_minute_end_counts_each_service_once() {
    let folder = tempfile::tempdir().unwrap();
    let imbalance = Imbalance::start(&folder.path().join("imbalance.redb")).await;
    report_usage(&imbalance, "a", later(0), 2_000, later(0));
    report_usage(&imbalance, "b", later(0), 1_000, later(0));
    let (other, place) =
        (ServiceName::new("shop/pay").unwrap(), Location::in_region(Region::new("eu").unwrap()));
    let usage = Usage { cpu_us: 60_000_000, covered_ms: 60_000, ..Usage::default() };
    record(&imbalance, (&other, "p", &place), (later(0), usage), later(0));
    imbalance.save_and_close(later(0)).await.unwrap();
    // The state after such a failure: one service is closed, but the minute is still open for both.
    let rows = imbalance.open().rows(later(0)).into_iter().filter(|(name, _)| *name == service()).collect();
    imbalance.history.as_ref().unwrap().close_services(later(0), rows).await.unwrap();
    let sum = async |now: u32, window: u32| {
        let (_, total) = wasted(&imbalance, window, later(now)).await;
        (total.containers, total.used)
    };
    assert_eq!(sum(16, 60).await, (3, 4_000), "a closed service is not read as open too");
    // The next round closes the other service.
    imbalance.save_and_close(later(17)).await.unwrap();
    assert_eq!(imbalance.open().minutes(), []);
    for window in [60, 24 * 60, 30 * 24 * 60] {
        assert_eq!(sum(17, window).await, (3, 4_000), "window of {window} minutes");
    }
}

#[tokio::test]
async fn late_usage_reports_count_in_their_own_minute_until_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let imbalance = Imbalance::start(&folder.path().join("imbalance.redb")).await;
    report_usage(&imbalance, "a", later(0), 2_000, later(0));
    imbalance.save_and_close(later(1)).await.unwrap();
    assert_eq!(report_usage(&imbalance, "b", later(0), 1_000, later(15)), AddOutcome::Counted);
    assert_eq!(wasted(&imbalance, 60, later(15)).await, (1, pair(1)));
    imbalance.save_and_close(later(16)).await.unwrap();
    assert_eq!(report_usage(&imbalance, "c", later(0), 1_000, later(16)), AddOutcome::Late);
    assert_eq!(wasted(&imbalance, 60, later(16)).await, (1, pair(1)));
    assert_eq!(imbalance.counts.late.load(Relaxed), 1);
}

#[tokio::test]
async fn imbalance_report_leaves_incomplete_minute_out() {
    let imbalance = Imbalance::of(OpenMinutes::default(), None);
    report_usage(&imbalance, "a", later(0), 2_000, later(0));
    report_usage(&imbalance, "b", later(0), 1_000, later(0));
    report_usage(&imbalance, "a", later(1), 2_000, later(1));
    assert_eq!(wasted(&imbalance, 60, later(0)).await, (1, pair(1)), "b has not reported its second minute");
}

#[tokio::test]
async fn finer_imbalance_rows_expire_before_coarser_ones() {
    let folder = tempfile::tempdir().unwrap();
    let imbalance = Imbalance::start(&folder.path().join("imbalance.redb")).await;
    report_usage(&imbalance, "a", later(0), 2_000, later(0));
    report_usage(&imbalance, "b", later(0), 1_000, later(0));
    let keys = |tier: Tier| {
        let imbalance = &imbalance;
        async move {
            let history = imbalance.history.as_ref().unwrap();
            history.rows(tier, Minute(0), Minute(u32::MAX)).await.unwrap().len()
        }
    };
    imbalance.save_and_close(later(20)).await.unwrap();
    assert_eq!([keys(Tier::Minute).await, keys(Tier::Hour).await, keys(Tier::Day).await], [1, 1, 1]);
    imbalance.delete_expired(later(7 * 60)).await.unwrap();
    assert_eq!([keys(Tier::Minute).await, keys(Tier::Hour).await, keys(Tier::Day).await], [0, 1, 1]);
    imbalance.delete_expired(later(15 * 24 * 60)).await.unwrap();
    assert_eq!([keys(Tier::Minute).await, keys(Tier::Hour).await, keys(Tier::Day).await], [0, 0, 1]);
    assert_eq!(wasted(&imbalance, 30 * 24 * 60, later(15 * 24 * 60)).await, (1, pair(1)));
    imbalance.delete_expired(later(6 * 366 * 24 * 60)).await.unwrap();
    assert_eq!(keys(Tier::Day).await, 0);
}

#[tokio::test]
async fn corrected_clock_closes_no_future_usage_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let imbalance = Imbalance::start(&folder.path().join("imbalance.redb")).await;
    report_usage(&imbalance, "a", later(0), 2_000, later(0));
    report_usage(&imbalance, "b", later(0), 1_000, later(0));
    let ahead = later(10 * 366 * 24 * 60);
    assert_eq!(report_usage(&imbalance, "c", later(0), 1_000, ahead), AddOutcome::Late);
    imbalance.save_and_close(ahead).await.unwrap();
    imbalance.save_and_close(ahead).await.unwrap();
    assert_eq!(wasted(&imbalance, 60, later(0)).await, (1, pair(1)), "nothing is deleted");
    report_usage(&imbalance, "a", later(1), 2_000, later(1));
    report_usage(&imbalance, "b", later(1), 1_000, later(1));
    assert_eq!(wasted(&imbalance, 60, later(1)).await, (2, pair(2)), "after the correction");
}

#[tokio::test]
async fn imbalance_history_over_size_limit_deletes_finest_resolution_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut open = OpenMinutes::default();
    let bound = 4_000;
    let history =
        HistoryFile::bounded(&folder.path().join("imbalance.redb"), &mut open, bound).await.unwrap();
    let imbalance = Imbalance::of(open, Some(history));
    for minute in 0..100 {
        report_usage(&imbalance, "a", later(minute), 2_000, later(minute));
        report_usage(&imbalance, "b", later(minute), 1_000, later(minute));
        imbalance.save_and_close(later(minute)).await.unwrap();
    }
    imbalance.save_and_close(later(200)).await.unwrap();
    let history = imbalance.history.as_ref().unwrap();
    assert!(history.bytes() <= bound, "{}", history.bytes());
    assert_eq!(wasted(&imbalance, 24 * 60, later(200)).await, (100, pair(100)), "hours contain all");
}

#[tokio::test]
async fn damage_to_open_imbalance_history_is_detected() {
    use std::os::unix::fs::FileExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imbalance.redb");
    let imbalance = Imbalance::start(&path).await;
    for instance in 0..200 {
        report_usage(&imbalance, &format!("i{instance}"), later(0), 2_000, later(0));
    }
    imbalance.save_and_close(later(30)).await.unwrap();
    imbalance.verify().await.unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Damages every copy of a row, since free pages are not verified.
    for (at, _) in fs::read(&path).unwrap().windows(7).enumerate().filter(|(_, found)| found == b"minute/") {
        file.write_at(b"M", at as u64).unwrap();
    }
    assert!(imbalance.verify().await.is_err());
}

#[tokio::test]
async fn damaged_imbalance_history_is_left_unchanged_and_last_hour_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imbalance.redb");
    fs::write(&path, "this is no store").unwrap();
    let imbalance = Imbalance::start(&path).await;
    assert!(imbalance.history.is_none());
    for minute in 0..90 {
        report_usage(&imbalance, "a", later(minute), 2_000, later(minute));
        report_usage(&imbalance, "b", later(minute), 1_000, later(minute));
        imbalance.save_and_close(later(minute)).await.unwrap();
    }
    assert_eq!(wasted(&imbalance, 60, later(89)).await, (60, pair(60)));
    assert!(imbalance.open().minutes().len() <= MAX_WRITE_DELAY as usize + 1, "bounded");
    assert_eq!(fs::read(&path).unwrap(), b"this is no store");
}

#[tokio::test]
async fn report_by_host_type_lists_outlier_instances() {
    let folder = tempfile::tempdir().unwrap();
    let imbalance = Imbalance::start(&folder.path().join("imbalance.redb")).await;
    for minute in 0..3 {
        for instance in 0..6 {
            let millicores = if instance == 4 { 3_000 } else { 2_000 };
            report_usage(&imbalance, &format!("i{instance}"), later(minute), millicores, later(minute));
        }
    }
    let query = ReportQuery::read("shop/cart", "host-type", "10m").unwrap();
    let report = imbalance.report(&query, later(2)).await.unwrap();
    assert_eq!(report.by, Breakdown::Slice(Dimension::HostType));
    assert_eq!((report.lines.len(), report.lines[0].name.as_str()), (1, "old"));
    assert_eq!(report.total.wasted(), 3 * 5_000);
    assert_eq!(report.causes.within, 3 * 5_000);
    assert_eq!(report.outliers.len(), 1);
    assert_eq!(report.outliers[0].outlier.instance.as_str(), "i4");
    assert_eq!(report.outliers[0].outlier.off, 500);
    let elsewhere = ReportQuery::read("shop/pay", "", "").unwrap();
    assert_eq!(imbalance.report(&elsewhere, later(2)).await.unwrap().lines, []);
    for wrong in [("cart", "", ""), ("", "moon", ""), ("", "", "soon")] {
        assert!(ReportQuery::read(wrong.0, wrong.1, wrong.2).is_err(), "{wrong:?}");
    }
}

#[tokio::test]
async fn imbalance_report_by_hour_covers_closed_and_open_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let imbalance = Imbalance::start(&folder.path().join("imbalance.redb")).await;
    let first = Tier::Hour.bucket(START);
    let minute = |n: u32| Minute(first.0 + n);
    for n in [58, 59, 60] {
        report_usage(&imbalance, "a", minute(n), 1_000, minute(n));
    }
    imbalance.save_and_close(minute(58 + MAX_WRITE_DELAY)).await.unwrap();
    let query = ReportQuery::of("", "hour", 0).unwrap();
    let report = imbalance.report(&query, minute(60 + MAX_WRITE_DELAY)).await.unwrap();
    let lines: Vec<_> = report.lines.iter().map(|line| (line.minutes, line.area.used)).collect();
    assert_eq!(lines, [(2, 2_000), (1, 1_000)]);
    assert_eq!(report.newest, Some(minute(60)), "servers stopped reporting");
    // Days and hours that are not over: the minutes say when it was, and later the hours.
    imbalance.save_and_close(minute(60 + MAX_WRITE_DELAY)).await.unwrap();
    let query = ReportQuery::of("", "day", 30 * 24 * 60).unwrap();
    for (age, newest) in [(200, 60), (500, 119)] {
        let report = imbalance.report(&query, minute(60 + age)).await.unwrap();
        assert_eq!(report.newest, Some(minute(newest)), "after {age} minutes");
    }
    let refused = ReportQuery::of("", "hour", 15 * 24 * 60).unwrap_err();
    assert!(refused.to_string().contains("14"), "{refused}");
}

#[tokio::test]
async fn usage_minutes_of_many_services_are_written_in_few_batches() {
    let folder = tempfile::tempdir().unwrap();
    let imbalance = Imbalance::start(&folder.path().join("imbalance.redb")).await;
    let place = Location::in_region(Region::new("eu").unwrap());
    let usage = Usage { cpu_us: 60_000_000, covered_ms: 60_000, ..Usage::default() };
    for number in 0..3_000 {
        let service = ServiceName::new(format!("shop/s{number}")).unwrap();
        record(&imbalance, (&service, "a", &place), (later(0), usage), later(0));
    }
    let revision = async || imbalance.history.as_ref().unwrap().revision().await;
    let before = revision().await;
    imbalance.save_and_close(later(0)).await.unwrap();
    let saved = revision().await - before;
    assert!((1..=5).contains(&saved), "{saved} batches");
    imbalance.save_and_close(later(20)).await.unwrap();
    let closed = revision().await - before - saved;
    assert!((1..=20).contains(&closed), "{closed} batches");
    assert_eq!(wasted(&imbalance, 24 * 60, later(20)).await.1.containers, 3_000);
}

#[tokio::test(start_paused = true)]
async fn imbalance_stop_does_not_wait_for_slow_write() {
    let folder = tempfile::tempdir().unwrap();
    let imbalance = Imbalance::start(&folder.path().join("imbalance.redb")).await;
    report_usage(&imbalance, "a", later(0), 2_000, later(0));
    // A reader that never ends blocks closing, and thereby the round.
    let _reading = imbalance.closing.read().await;
    let stopping = CancellationToken::new();
    stopping.cancel();
    tokio::time::timeout(Duration::from_secs(1), imbalance.run(stopping)).await.expect("it stops");
}
