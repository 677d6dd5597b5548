use EndpointState::{Lost, Serving};
use VerdictEffect::{Exclusion, None, Penalty};

use super::*;
use crate::{InstanceId, Location};

/// Endpoints by region, state and number of consecutive failed probes. Lost endpoints have an expired lease.
type Fleet<'a> = &'a [(&'a str, EndpointState, u32)];

/// The judgement of a caller in `eu`, whose next ring contains all other regions.
fn judged(fleet: Fleet<'_>, evidence: &[Option<bool>]) -> Judgement {
    let mut verdicts = Verdicts::default();
    let endpoint = |(i, (region, state, failures)): (usize, &(&str, EndpointState, u32))| {
        let mut endpoint = crate::endpoint::host_speeds::tests::endpoint("10.0.0.1:80", Option::None, 1000);
        let (instance, region) = (InstanceId::new(format!("i{i}")).unwrap(), Region::new(region).unwrap());
        let confidence = Verdict::confidence_of(*failures);
        let verdict = Verdict { healthy: false, since_ms: 0, confidence, cause: String::new(), stale: false };
        verdicts.put(region.clone(), instance.clone(), verdict);
        if *state == Lost {
            endpoint.labels.insert(Endpoint::LOST.to_owned(), format!("5 {}", Endpoint::EXPIRED));
        }
        Endpoint { instance, location: Location::in_region(region), state: *state, ..endpoint }
    };
    let endpoints: Vec<Endpoint> = fleet.iter().enumerate().map(endpoint).collect();
    let level = |region: &Region| Some(u32::from(region.as_str() != "eu"));
    let evidence = |position: usize| evidence.get(position).copied().flatten();
    let view = CallerView { level: &level, evidence: &evidence };
    verdicts.judge(&endpoints.iter().collect::<Vec<_>>(), &Hosts::default(), view)
}

fn standings(judgement: &Judgement) -> Vec<(&str, Standing)> {
    judgement.contested.iter().map(|(region, standing)| (region.as_str(), *standing)).collect()
}

#[test]
fn unhealthy_verdicts_against_half_of_region_are_believed() {
    let half = judged(&[("eu", Serving, 3), ("eu", Serving, 0)], &[]);
    assert_eq!((half.effects.as_slice(), standings(&half)), ([Penalty, None].as_slice(), vec![]));
}

#[test]
fn verdicts_against_region_are_believed_if_others_carry_all_calls() {
    let fleet = [("eu", Serving, 9), ("eu", Serving, 9), ("us", Serving, 0), ("us", Serving, 0)];
    let all = judged(&fleet, &[]);
    assert_eq!(standings(&all), [("eu", Standing::Believed)]);
    assert_eq!(all.effects, [Exclusion, Exclusion, None, None]);
    assert_eq!(all.shares, [(0, 0), (1, 1000)]);
}

#[test]
fn mostly_unhealthy_region_keeps_share_of_calls_it_can_carry() {
    let fleet = [("eu", Serving, 9), ("eu", Serving, 9), ("eu", Serving, 0), ("us", Serving, 0)];
    let most = judged(&fleet, &[]);
    assert_eq!(standings(&most), [("eu", Standing::Believed)]);
    assert_eq!(most.shares, [(0, 466), (1, 534)], "1.4 times a third");
}

#[test]
fn health_verdicts_are_ignored_when_no_region_can_carry_calls() {
    let fleet = [("eu", Serving, 9), ("eu", Serving, 9), ("eu", Serving, 0)];
    let alone = judged(&fleet, &[]);
    assert_eq!(standings(&alone), [("eu", Standing::Panic)]);
    assert_eq!(alone.effects, [None, None, None]);
    let none = judged(&[("eu", Serving, 9), ("us", Serving, 9)], &[]);
    assert_eq!(standings(&none), [("eu", Standing::Panic), ("us", Standing::Believed)]);
    assert_eq!(none.shares, [(0, 1000), (1, 0)]);
    let short =
        judged(&[&fleet[..], &[("us", Serving, 9), ("us", Serving, 9), ("us", Serving, 0)]].concat(), &[]);
    assert_eq!(short.shares, [(0, 500), (1, 500)]);
    assert_eq!(standings(&short), [("eu", Standing::Panic), ("us", Standing::Panic)]);
}

#[test]
fn own_successful_calls_refute_health_verdicts_and_failures_do_not() {
    let fleet = [("eu", Serving, 9), ("eu", Serving, 9), ("us", Serving, 0)];
    for (evidence, standing) in [
        ([Some(true), Option::None], Standing::Refuted),
        ([Some(true), Some(true)], Standing::Refuted),
        ([Some(true), Some(false)], Standing::Believed),
        ([Some(false), Option::None], Standing::Believed),
    ] {
        let judgement = judged(&fleet, &evidence);
        assert_eq!(standings(&judgement), [("eu", standing)], "{evidence:?}");
        assert_eq!(judgement.effects[0] == None, standing == Standing::Refuted);
    }
}

#[test]
fn expired_leases_of_most_endpoints_count_as_unhealthy_verdicts() {
    let fleet = [("eu", Serving, 0), ("eu", Lost, 0), ("eu", Lost, 0), ("eu", Lost, 0), ("eu", Lost, 0)];
    let alone = judged(&fleet, &[]);
    assert_eq!((standings(&alone), &alone.effects), (vec![("eu", Standing::Panic)], &vec![None; 5]));
    let few = judged(&fleet[..2], &[]);
    assert_eq!((standings(&few), &few.effects), (vec![], &vec![None, Exclusion]), "half of them");
    let gone = judged(&fleet[1..], &[]);
    assert_eq!(gone.effects, vec![Exclusion; 4], "all are lost: a last resort that is counted");
    let beside = judged(&[&fleet[..], &[("us", Serving, 0)]].concat(), &[]);
    assert_eq!(standings(&beside), [("eu", Standing::Believed)]);
    assert_eq!(beside.shares, [(0, 280), (1, 720)]);
}

#[test]
fn shares_of_locality_rings_add_up_to_all_calls() {
    for (carries, shares) in [
        (&[1000, 1000][..], vec![1000, 0]),
        (&[700, 200, 1000], vec![700, 200, 100]),
        (&[200, 100], vec![667, 333]),
        (&[0, 0], vec![1000, 0]),
        (&[], vec![]),
    ] {
        assert_eq!(share_calls(carries), shares, "{carries:?}");
    }
}
