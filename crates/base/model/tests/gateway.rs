//! Bounds of the gateway's records, and which backends get connections.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fairmesh_model::{
    ConnectionLimit, GatewayBackend, GatewayQuota, GatewayService, Label, Placement, PlacementPin, Throttle,
    Zone,
};

fn placement(zones: &[(&str, &[&str])]) -> Placement {
    let names = |names: &[&str]| names.iter().map(|name| Label::new(name).unwrap()).collect();
    let zones = zones.iter().map(|(zone, backends)| (Zone::new(zone).unwrap(), names(backends)));
    let (pinned, connection_limit) = (None, None);
    let home_zone = Zone::new("b").unwrap();
    Placement { home_zone, zones: zones.collect(), added: 0, pinned, connection_limit }
}

#[test]
fn gateway_backends_are_ordered_from_callers_zone_or_home_zone() {
    let placed = placement(&[("a", &["one"]), ("b", &["two", "three"]), ("c", &["four"])]);
    let order = |zone: Option<&str>| {
        let zone = zone.map(|zone| Zone::new(zone).unwrap());
        let order = placed.in_order(zone.as_ref()).into_iter();
        order.map(|names| names.first().unwrap().as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(order(None), ["three", "one", "four"]);
    assert_eq!(order(Some("c")), ["four", "one", "three"]);
    assert_eq!(order(Some("elsewhere")), ["three", "one", "four"]);
    assert_eq!(placed.to_string(), "a: one; b: three, two; c: four");
    let four = Label::new("four").unwrap();
    assert!(placed.has(&four) && !placement(&[("a", &["one"])]).has(&four));
}

#[test]
fn connections_end_at_other_backends_of_a_lossy_move_alone() {
    let (one, two) = (Label::new("one").unwrap(), Label::new("two").unwrap());
    let moved = |ends_connections| {
        let pinned = Some(PlacementPin { ends_connections, ..PlacementPin::default() });
        Placement { pinned, ..placement(&[("a", &["one"])]) }
    };
    assert!(moved(true).ends_connections_at(&two) && !moved(true).ends_connections_at(&one));
    assert!(!moved(false).ends_connections_at(&two));
    assert!(!placement(&[("a", &["one"])]).ends_connections_at(&two));
}

#[test]
fn gateway_record_numbers_out_of_range_are_refused() {
    assert!(placement(&[]).validate().is_err() && placement(&[("a", &[])]).validate().is_err());
    assert!(placement(&[("a", &["one"]), ("b", &["one"])]).validate().is_err());
    assert!(placement(&[("a", &["one"])]).validate().is_ok());
    let limited = |per_second, reason: &str| {
        let limit = ConnectionLimit { per_second, reason: reason.into(), at_ms: 1, is_automatic: false };
        Placement { connection_limit: Some(limit), ..placement(&[("a", &["one"])]) }.validate()
    };
    assert!(limited(1, "").is_ok() && limited(0, "").is_err());
    assert!(limited(1, &"x".repeat(10_000)).is_err());
    let of = |backends| {
        let (home_zone, throttle) = (Zone::new("a").unwrap(), Throttle::Ask);
        GatewayService { home_zone, backends, grows: true, throttle }.validate()
    };
    assert!(of(3).is_ok() && of(32).is_ok() && of(2).is_err() && of(33).is_err());
    let backend = |capacity, replicas: &[&str]| {
        let replicas = replicas.iter().map(|address| address.parse().unwrap()).collect();
        let zone = Zone::new("a").unwrap();
        GatewayBackend { zone, capacity, replicas, is_closed: false, is_sandbox: false }.validate()
    };
    assert!(backend(1, &["10.0.0.1:7440"]).is_ok());
    let quota = |requests| GatewayQuota { requests, ..GatewayQuota::default() }.validate();
    assert!(quota(Some(1)).is_ok() && quota(Some(0)).is_err() && quota(None).is_err());
    assert!(backend(0, &["10.0.0.1:7440"]).is_err());
    assert!(backend(1, &[]).is_ok(), "one that a launcher starts");
    let many: Vec<String> = (0..65).map(|number| format!("10.0.0.{number}:7440")).collect();
    assert!(backend(1, &many.iter().map(String::as_str).collect::<Vec<_>>()).is_err());
    assert!(backend(1, &["0.0.0.0:7440"]).is_err() && backend(1, &["10.0.0.1:0"]).is_err());
}
