use fairmesh_model::{Location, Region};

use super::*;

fn row(region: &str, used: &[u64]) -> Row {
    let place = Location::in_region(Region::new(region).unwrap());
    Row::of_minute(used.iter().map(|used| (&place, *used)))
}

fn rows() -> BTreeMap<(Minute, ServiceName), Row> {
    let mut cart = row("eu", &[5_000, 3_000]);
    cart.add(&row("us", &[4_000, 2_000]));
    let name = |name: &str| (Minute(0), ServiceName::new(name).unwrap());
    BTreeMap::from([(name("shop/cart"), cart), (name("shop/admin"), row("eu", &[9_000, 1_000]))])
}

#[test]
fn imbalance_report_lines_add_up_to_total_in_every_breakdown() {
    for by in Breakdown::ALL {
        let report = ImbalanceReport::of(by, &rows(), Vec::new());
        assert_eq!((report.minutes, report.total.wasted()), (2, 2_000 + 2_000 + 8_000));
        assert_eq!(report.causes.total(), report.total.wasted());
        if by != Breakdown::Cause {
            let mut sum = Area::default();
            report.lines.iter().for_each(|line| sum += line.area);
            assert_eq!(sum, report.total, "{by:?}");
        }
    }
}

#[test]
fn imbalance_report_lines_sort_by_waste_and_average_cores() {
    let view = ImbalanceReport::of(Breakdown::Service, &rows(), Vec::new()).view();
    let names: Vec<_> = view.lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["shop/admin", "shop/cart"]);
    let cart = &view.lines[1];
    assert_eq!((cart.containers, cart.used_cores, cart.wasted_cores), (2.0, 7.0, 2.0));
    assert_eq!((cart.p99_cores, cart.mean_cores), (4.5, 3.5));
    assert_eq!(cart.index, Some(18.0 / 14.0));
    assert_eq!(view.total.wasted_cores, view.lines.iter().map(|line| line.wasted_cores).sum::<f64>());
    assert_eq!(view.causes[3].share, Some(1.0), "no host type is given");
}

#[test]
fn imbalance_causes_of_service_add_up_to_its_waste() {
    let report = ImbalanceReport::of(Breakdown::Service, &rows(), Vec::new());
    for line in &report.lines {
        assert_eq!(line.causes.unwrap().total(), line.area.wasted(), "{}", line.name);
    }
    let view = report.view();
    let wasted: f64 = view.lines[0].causes.iter().map(|cause| cause.wasted_cores).sum();
    assert_eq!(wasted, view.lines[0].wasted_cores);
    let regions = ImbalanceReport::of(Breakdown::named("region").unwrap(), &rows(), Vec::new()).view();
    assert!(regions.lines.iter().all(|line| line.causes.is_empty()), "a region is a cause itself");
}

#[test]
fn imbalance_report_averages_hours_and_days_over_their_own_minutes() {
    let mut busy = row("eu", &[5_000, 3_000]);
    busy.add(&row("eu", &[5_000, 3_000]));
    let (late, next) = (Minute(29_671_859), Minute(29_671_860));
    let of = |by: Breakdown| {
        let at = |minute| (by.time(minute), ServiceName::new("shop/cart").unwrap());
        let mut rows = BTreeMap::new();
        for (minute, row) in [(late, &row("eu", &[1_000])), (next, &busy)] {
            rows.entry(at(minute)).or_insert_with(Row::default).add(row);
        }
        ImbalanceReport::of(by, &rows, Vec::new()).view()
    };
    let hours = of(Breakdown::Time(Tier::Hour));
    let lines: Vec<_> = hours.lines.iter().map(|line| (&*line.name, line.minutes, line.used_cores)).collect();
    assert_eq!(lines, [("2026-06-01T10:00Z", 1, 1.0), ("2026-06-01T11:00Z", 2, 8.0)]);
    assert_eq!((hours.minutes, hours.total.used_cores), (3, 17.0 / 3.0));
    let days = of(Breakdown::Time(Tier::Day));
    assert_eq!((days.lines.len(), &*days.lines[0].name, days.lines[0].minutes), (1, "2026-06-01", 3));
}

#[test]
fn every_imbalance_breakdown_parses_as_displayed() {
    for by in Breakdown::ALL {
        assert_eq!(Breakdown::named(by.name()), Some(by));
    }
    assert_eq!(Breakdown::named("moon"), None);
}

#[test]
fn day_numbers_of_report_are_converted_to_dates() {
    let dates = [
        (0, (1970, 1, 1)),
        (58, (1970, 2, 28)),
        (59, (1970, 3, 1)),
        (11_016, (2000, 2, 29)),
        (20_513, (2026, 3, 1)),
    ];
    for (days, expected) in dates {
        assert_eq!(date(days), expected, "{days}");
    }
}
