//! Pins and limits of services as JSON, for `gateway status` and `gateway explain`.

use fairmesh_console::{output::timestamp, view_reader::View};
use fairmesh_model::{Label, Placement, ServiceName};
use serde_json::{Value, json};

/// The services on a backend, or this one of them, that are pinned, limited, or have more backends than they ask for.
pub(super) fn items(view: &View, backend: &Label, only: Option<&ServiceName>) -> Vec<Value> {
    let services = view.services.iter().filter(|(name, _)| only.is_none_or(|only| *name == only));
    let placed = services.filter_map(|(name, one)| Some((name, &one.placement.as_ref()?.value)));
    placed
        .filter(|(_, placement)| placement.has(backend))
        .filter_map(|(name, placement)| item(name, placement))
        .collect()
}

fn item(name: &ServiceName, placement: &Placement) -> Option<Value> {
    let Placement { added, pinned, connection_limit, .. } = placement;
    if *added == 0 && pinned.is_none() && connection_limit.is_none() {
        return None;
    }
    let pinned = pinned.as_ref().map(|pin| {
        json!({
            "reason": pin.reason,
            "at": timestamp(pin.at_ms / 1000),
            "endsConnections": pin.ends_connections,
            "sandbox": pin.is_sandbox,
        })
    });
    let limit = connection_limit.as_ref().map(|limit| {
        json!({
            "perSecond": limit.per_second,
            "reason": limit.reason,
            "at": timestamp(limit.at_ms / 1000),
            "automatic": limit.is_automatic,
        })
    });
    Some(json!({ "service": name.to_string(), "added": added, "pinned": pinned, "connectionLimit": limit }))
}

#[cfg(test)]
mod tests {
    use fairmesh_console::view_reader::{At, ServiceView};
    use fairmesh_model::{ConnectionLimit, PlacementPin, Zone};

    use super::*;

    #[test]
    fn pins_and_limits_are_listed_at_the_backends_of_the_service() {
        let (zone, gw) = (Zone::new("a").unwrap(), Label::new("gw-1").unwrap());
        let placement = |pinned, connection_limit| Placement {
            home_zone: zone.clone(),
            zones: [(zone.clone(), [gw.clone()].into())].into(),
            added: 0,
            pinned,
            connection_limit,
        };
        let pin = PlacementPin { reason: "drill".into(), is_sandbox: true, ..PlacementPin::default() };
        let limit = ConnectionLimit { per_second: 7, reason: "loop".into(), at_ms: 5, is_automatic: true };
        let services = [
            ("red/free", placement(None, None)),
            ("red/limited", placement(None, Some(limit))),
            ("red/pinned", placement(Some(pin), None)),
        ];
        let view = |(name, placement): (&str, Placement)| {
            let placement = Some(At { value: placement, revision: 1 });
            (ServiceName::new(name).unwrap(), ServiceView { placement, ..ServiceView::default() })
        };
        let view = View { services: services.map(view).into(), ..View::default() };
        let all = items(&view, &gw, None);
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[0]["connectionLimit"]["perSecond"], 7);
        assert_eq!(
            (&all[1]["pinned"]["reason"], &all[1]["pinned"]["sandbox"]),
            (&json!("drill"), &json!(true))
        );
        let one = ServiceName::new("red/pinned").unwrap();
        assert_eq!(items(&view, &gw, Some(&one)), all[1..]);
        assert!(items(&view, &Label::new("gw-2").unwrap(), None).is_empty());
    }
}
