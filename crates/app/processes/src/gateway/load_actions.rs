//! What is done about loads of the gateway, and what is not, with the reason: for `gateway status` and `gateway explain`.

use fairmesh_console::{
    output::ago,
    view_reader::{ServiceView, View, age_of},
};
use fairmesh_model::{ConnectionLimit, PlacementPin, ServiceName, Throttle};
use fairmesh_wire::v1::GatewayAlert;

/// What operators and the controller did to a service, one sentence each.
pub(super) fn in_force(service: &ServiceView) -> Vec<String> {
    let Some(placement) = service.placement.as_ref().map(|one| &one.value) else { return Vec::new() };
    let mut acts = Vec::new();
    if let Some(PlacementPin { reason, at_ms, ends_connections, is_sandbox }) = &placement.pinned {
        let elsewhere = if *ends_connections { ", and connections elsewhere were ended" } else { "" };
        let placed = if *is_sandbox { "it was moved to the sandbox" } else { "an operator placed it" };
        let text = format!("{placed} {} ago{elsewhere}, and it stays there", since(*at_ms));
        acts.push(with(text, reason));
    }
    if let Some(ConnectionLimit { per_second, reason, at_ms, is_automatic }) = &placement.connection_limit {
        let by = if *is_automatic { "the controller" } else { "an operator" };
        let text = format!(
            "{by} limits it to {per_second} new connections a second at each replica for {}",
            since(*at_ms)
        );
        acts.push(with(text, reason));
    }
    acts
}

/// What follows from the alert of a backend, if its cause is a service of which something is to say.
pub(super) fn follows(alert: &GatewayAlert, view: &View) -> Option<String> {
    let name = ServiceName::new(alert.service.clone()).ok()?;
    let service = view.services.get(&name)?;
    let (wanted, placement) = (&service.gateway.as_ref()?.value, &service.placement.as_ref()?.value);
    match alert.cause.as_str() {
        _ if placement.pinned.as_ref().is_some_and(|pin| pin.is_sandbox) => {
            Some(format!("{name} is in the sandbox"))
        }
        "growth" if placement.pinned.is_some() => {
            Some(format!("{name} gets no further backend, since an operator placed it"))
        }
        "growth" if !wanted.grows => {
            Some(format!("{name} gets no further backend, since its record has 'growth: off'"))
        }
        "connections" if placement.connection_limit.is_some() => {
            Some(format!("new connections of {name} are limited"))
        }
        "connections" => Some(match wanted.throttle {
            Throttle::Agreed => format!("the controller limits new connections of {name}"),
            Throttle::Ask => format!(
                "to limit its new connections to twice the usual: fairmesh gateway throttle {name} --connections {}",
                alert.proposed_limit
            ),
            Throttle::Never => {
                format!("new connections of {name} are not limited, since its record has 'throttle: never'")
            }
        }),
        _ => None,
    }
}

fn with(text: String, reason: &str) -> String {
    if reason.is_empty() { text } else { format!("{text}: {reason}") }
}

fn since(at_ms: u64) -> String {
    ago(u64::try_from(age_of(at_ms).as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use fairmesh_console::view_reader::At;
    use fairmesh_model::{GatewayService, Label, Placement, Zone};

    use super::*;

    fn view(change: impl FnOnce(&mut GatewayService, &mut Placement)) -> View {
        let zone = Zone::new("a").unwrap();
        let mut wanted =
            GatewayService { home_zone: zone.clone(), backends: 3, grows: true, throttle: Throttle::Ask };
        let mut placement = Placement {
            home_zone: zone.clone(),
            zones: [(zone, [Label::new("gw-1").unwrap()].into())].into(),
            added: 0,
            pinned: None,
            connection_limit: None,
        };
        change(&mut wanted, &mut placement);
        let gateway = Some(At { value: wanted, revision: 1 });
        let placement = Some(At { value: placement, revision: 2 });
        let service = ServiceView { gateway, placement, ..ServiceView::default() };
        View { services: [(ServiceName::new("red/web").unwrap(), service)].into(), ..View::default() }
    }

    fn alert(cause: &str) -> GatewayAlert {
        GatewayAlert {
            cause: cause.into(),
            service: "red/web".into(),
            proposed_limit: 62,
            ..GatewayAlert::default()
        }
    }

    #[test]
    fn alert_says_why_no_backend_is_added() {
        let pinned = Some(PlacementPin::default());
        assert_eq!(follows(&alert("growth"), &view(|_, _| {})), None);
        let off = follows(&alert("growth"), &view(|wanted, _| wanted.grows = false)).unwrap();
        assert!(off.contains("'growth: off'"), "{off}");
        let placed = follows(&alert("growth"), &view(|_, placement| placement.pinned = pinned)).unwrap();
        assert!(placed.contains("an operator placed it"), "{placed}");
        assert_eq!(follows(&alert("costlier requests"), &view(|wanted, _| wanted.grows = false)), None);
    }

    #[test]
    fn attack_is_answered_as_the_record_allows() {
        let of = |throttle| follows(&alert("connections"), &view(|wanted, _| wanted.throttle = throttle));
        let asked = of(Throttle::Ask).unwrap();
        assert!(asked.ends_with("fairmesh gateway throttle red/web --connections 62"), "{asked}");
        assert!(of(Throttle::Never).unwrap().contains("'throttle: never'"));
        assert!(of(Throttle::Agreed).unwrap().contains("the controller limits"));
    }

    #[test]
    fn load_actions_are_shown_with_their_reasons_and_authors() {
        let (reason, at_ms) = ("drill".to_owned(), 0);
        let acts = in_force(
            &view(|_, placement| {
                let (reason, ends_connections, is_sandbox) = (reason.clone(), true, false);
                placement.pinned = Some(PlacementPin { reason, at_ms, ends_connections, is_sandbox });
                placement.connection_limit =
                    Some(ConnectionLimit { per_second: 7, reason: String::new(), at_ms, is_automatic: true });
            })
            .services[&ServiceName::new("red/web").unwrap()],
        );
        assert!(acts[0].starts_with("an operator placed it") && acts[0].ends_with(": drill"), "{acts:?}");
        assert!(acts[1].starts_with("the controller limits it to 7 new connections a second"), "{acts:?}");
    }
}
