mod adjustments;

use std::sync::Arc;

use fairmesh_views::Scope;
use fairmesh_wire::v1::{
    self,
    traffic::{Mode, Planner},
};
use serde_json::{Value, json};

use super::given;
use crate::{
    command_queries::coarse,
    event_delta::{Shown, text},
};

/// Millionths per whole.
const WHOLE: f64 = 1e6;

/// Shows the planned services of a scope, with a row per service, like `fairmesh traffic status`.
pub(crate) fn summary(response: &v1::TrafficStatusResponse, scope: &Scope) -> Shown {
    let missing = response.without_trace_context.iter().filter(|one| is_of(&one.service, scope));
    let missing = missing.map(|one| json!({ "service": one.service, "share": one.share }));
    let head = json!({ "leftOut": response.left_out, "withoutTraceContext": missing.collect::<Vec<_>>() });
    let services = response.services.iter().filter(|one| is_of(&one.service, scope));
    Shown::with_rows(&head, services.map(|one| (one.service.clone(), Arc::from(text(&row(one))))))
}

/// Whether a service is in a scope, by its name in a response.
pub(crate) fn is_of(service: &str, scope: &Scope) -> bool {
    match scope {
        Scope::All => true,
        Scope::Tenant(tenant) => service.split('/').next() == Some(tenant.as_str()),
        Scope::Service(name) => service == name.to_string(),
    }
}

fn row(service: &v1::ServiceTraffic) -> Value {
    let offered = |region: &v1::RegionTraffic| region.offered.iter().sum::<f64>();
    json!({
        "planner": match service.planner() {
            Planner::Optimizer => "optimizer",
            Planner::Rings | Planner::None => "rings",
        },
        "mode": match service.mode() {
            Mode::Active => "active",
            Mode::Shadow => "shadow",
            Mode::Hold => "hold",
        },
        "plannedAgoMs": service.planned_ago_ms.map(coarse),
        "confirmedAgoMs": service.confirmed_ago_ms.map(coarse),
        "refusal": given(&service.refusal),
        "whyRings": given(&service.why_rings),
        "gap": service.optimized.as_ref().map(|plan| plan.gap),
        "offered": service.regions.iter().map(offered).sum::<f64>().round(),
        "dropped": dropped(service).round(),
        "doubts": doubts(service),
        "change": service.shifts.first().map(shift),
    })
}

/// Regions whose reports imply a capacity that the planner doubts, each with the reason.
fn doubts(service: &v1::ServiceTraffic) -> Vec<Value> {
    let doubted = service.regions.iter().filter(|region| !region.doubt.is_empty());
    doubted.map(|region| json!([region.region, region.doubt])).collect()
}

/// Returns the calls per second that the tables drop because no region has room for them.
fn dropped(service: &v1::ServiceTraffic) -> f64 {
    let shares =
        service.tables.iter().flat_map(|table| table.shares.iter().map(move |shares| (table, shares)));
    let calls = |(table, shares): (&v1::SourceShares, &v1::RegionShares)| {
        let from = service.regions.iter().find(|region| region.region == table.from)?;
        let class = service.classes.iter().position(|class| *class == shares.class)?;
        Some(from.offered.get(class)? * f64::from(shares.dropped) / WHOLE)
    };
    shares.filter_map(calls).sum()
}

fn shift(shift: &v1::TrafficShift) -> Value {
    json!({
        "agoMs": coarse(shift.ago_ms),
        "from": shift.from,
        "class": given(&shift.class),
        "text": shift.text,
    })
}

/// Shows what the planner knows and has decided about one service; `null` if the service is not planned.
pub(crate) fn detail(response: &v1::TrafficStatusResponse) -> Shown {
    Shown::head(&json!({ "service": response.services.first().map(service) }))
}

fn service(service: &v1::ServiceTraffic) -> Value {
    let mut detail = row(service);
    detail["name"] = json!(service.service);
    detail["round"] = json!(service.round);
    detail["plannedRounds"] = json!(service.planned_rounds);
    detail["refusedRounds"] = json!(service.refused_rounds);
    detail["regions"] = service.regions.iter().map(region).collect();
    detail["tables"] = service.tables.iter().flat_map(table).collect();
    detail["shifts"] = service.shifts.iter().map(shift).collect();
    detail["optimized"] = service.optimized.as_ref().map(optimized).unwrap_or_default();
    detail
}

fn region(region: &v1::RegionTraffic) -> Value {
    json!({
        "region": region.region,
        "endpoints": region.endpoints,
        "load": region.load,
        "predicted": region.predicted,
        "offered": region.offered.iter().sum::<f64>(),
        "received": region.received,
        "unreported": region.unreported,
        "serversAgoMs": region.servers_ago_ms.map(coarse),
        "callersAgoMs": region.callers_ago_ms.map(coarse),
        "zones": region.zones.iter().map(zone).collect::<Vec<_>>(),
        "zoneRefusal": given(&region.zone_refusal),
    })
}

/// Calls between two zones of a region, with the planned share of the calls that stay in the region.
fn zone(zone: &v1::ZoneTraffic) -> Value {
    json!({
        "from": zone.from,
        "to": zone.to,
        "share": f64::from(zone.share) / WHOLE,
        "calls": zone.attempts,
        "bytes": zone.bytes,
    })
}

/// Returns the shares for callers in a region, with a row per class.
fn table(table: &v1::SourceShares) -> impl Iterator<Item = Value> {
    let to = |share: &v1::RegionShare| json!([share.region, f64::from(share.share) / WHOLE]);
    table.shares.iter().map(move |shares| {
        json!({
            "from": table.from,
            "class": given(&shares.class),
            "to": shares.to.iter().map(to).collect::<Vec<_>>(),
            "dropped": f64::from(shares.dropped) / WHOLE,
        })
    })
}

fn optimized(plan: &v1::OptimizerPlan) -> Value {
    let expected = |row: &v1::ExpectedCalls| {
        json!({
            "from": row.from,
            "class": given(&row.class),
            "calls": row.calls_per_second,
            "latencyMs": row.latency_ms,
            "egress": row.egress,
        })
    };
    json!({
        "number": plan.number,
        "gap": plan.gap,
        "plannedAgoMs": coarse(plan.planned_ago_ms),
        "modelAgeMs": coarse(plan.model_age_ms),
        "modelError": plan.model_error,
        "expected": plan.expected.iter().map(expected).collect::<Vec<_>>(),
        "corrections": adjustments::corrections(plan),
        "attempts": adjustments::attempts(plan),
    })
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Tenant;

    use super::*;

    fn status() -> v1::TrafficStatusResponse {
        let shares = |class: &str, dropped| v1::RegionShares {
            class: class.into(),
            dropped,
            ..v1::RegionShares::default()
        };
        let cart = v1::ServiceTraffic {
            service: "shop/cart".into(),
            classes: vec![String::new(), "bulk".into()],
            regions: vec![v1::RegionTraffic {
                region: "eu".into(),
                offered: vec![100.0, 40.0],
                doubt: "more of its calls fail".into(),
                zones: vec![v1::ZoneTraffic {
                    from: "a".into(),
                    to: "b".into(),
                    share: 250_000,
                    ..v1::ZoneTraffic::default()
                }],
                ..v1::RegionTraffic::default()
            }],
            tables: vec![v1::SourceShares {
                from: "eu".into(),
                shares: vec![shares("", 0), shares("bulk", 500_000)],
            }],
            ..v1::ServiceTraffic::default()
        };
        let vault = v1::ServiceTraffic { service: "bank/vault".into(), ..v1::ServiceTraffic::default() };
        v1::TrafficStatusResponse { services: vec![cart, vault], ..v1::TrafficStatusResponse::default() }
    }

    #[test]
    fn unmet_demand_sums_calls_dropped_per_class() {
        assert_eq!(dropped(&status().services[0]), 20.0);
    }

    #[test]
    fn planned_service_names_doubted_regions_and_shares_of_zones() {
        let shown = service(&status().services[0]);
        assert_eq!(shown["doubts"], json!([["eu", "more of its calls fail"]]));
        assert_eq!(shown["regions"][0]["zones"][0]["share"], json!(0.25));
        assert_eq!(service(&status().services[1])["doubts"], json!([]));
    }

    #[test]
    fn tenant_viewer_sees_only_planned_services_of_tenant() {
        let rows = |scope| {
            let shown = summary(&status(), &scope).since(None).unwrap();
            serde_json::from_str::<Value>(&shown).unwrap()["rows"].as_object().unwrap().len()
        };
        assert_eq!(rows(Scope::All), 2);
        assert_eq!(rows(Scope::Tenant(Tenant::new("shop").unwrap())), 1);
        assert_eq!(rows(Scope::Tenant(Tenant::new("sho").unwrap())), 0);
    }
}
