use fairmesh_model::{DrainPhase, RegionDrain};
use fairmesh_views::instant;
use fairmesh_wire::v1;
use serde_json::{Value, json};

use crate::event_delta::Shown;

/// Millionths per whole.
const WHOLE: f64 = 1e6;

/// Shows drains of regions and what they wait for, like `fairmesh traffic status`.
pub(crate) fn drains(response: &v1::DrainsResponse) -> Shown {
    Shown::head(&json!({ "drains": response.drains.iter().map(drain).collect::<Vec<_>>() }))
}

fn drain(status: &v1::RegionDrainStatus) -> Value {
    // A drain that cannot be read was written by a later release.
    let drain = status.drain.and_then(|drain| RegionDrain::try_from(drain).ok());
    let phase = drain.map(|drain| match drain.phase() {
        DrainPhase::Draining => "draining",
        DrainPhase::Drained => "drained",
        DrainPhase::Returning => "returning",
    });
    json!({
        "region": status.region,
        "phase": phase,
        "keep": drain.map(|drain| f64::from(drain.keep.millionths()) / WHOLE),
        "stepsMade": drain.map(|drain| drain.steps_made()),
        "steps": RegionDrain::STEPS,
        "until": drain.and_then(|drain| drain.due_at_ms()).map(instant),
        "state": status.state,
        "held": status.is_held,
        "staying": status.staying,
        "services": status.services,
    })
}

/// Shows the effects that a drain would have, like `fairmesh drain --region NAME --dry-run`.
pub(crate) fn forecast(response: &v1::ForecastDrainResponse) -> Value {
    let region = |region: &v1::RegionForecast| {
        json!({
            "region": region.region,
            "before": region.before,
            "after": region.after,
            "calls": region.calls,
            "bytes": region.bytes,
            "roundTripUs": region.round_trip_us,
            "full": region.is_full,
            "timeNowUs": region.time_now_us,
            "timeAfterUs": region.time_after_us,
        })
    };
    let service = |service: &v1::ServiceForecast| {
        json!({
            "service": service.service,
            "refusal": service.refusal,
            "hold": service.hold,
            "leaving": service.leaving,
            "staying": service.staying,
            "dropped": service.dropped,
            "ofOthers": service.of_others,
            "regions": service.regions.iter().map(region).collect::<Vec<_>>(),
        })
    };
    let unmoved = |one: &v1::UnmovedService| json!({ "service": one.service, "reason": one.reason });
    json!({
        "services": response.services.iter().map(service).collect::<Vec<_>>(),
        "unmoved": response.unmoved_services.iter().map(unmoved).collect::<Vec<_>>(),
    })
}
