//! `fairmesh gateway explain`: the load of a backend, or of the backends of a service, and its cause.

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{Label, RecordKind, ServiceName};
use fairmesh_wire::{
    handshake::Connection,
    v1::{GatewayBackendLoad, GatewayServiceLoad},
};
use serde_json::{Value, json};

use super::{backend_load_text, in_force, load_actions, status};

const HEAD: &[&str] = &["SERVICE", "REQUESTS/S", "USUALLY", "ERRORS/S", "NEW CONNECTIONS/S", "USUALLY"];

/// Arguments of `fairmesh gateway explain`.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A backend, or a service, TENANT/SERVICE, whose backends are explained.
    #[arg(value_name = "BACKEND|SERVICE")]
    subject: String,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A backend with its load, if its replicas report.
struct Explained {
    backend: Label,
    load: Option<GatewayBackendLoad>,
    /// What follows from its alert.
    follows: Option<String>,
    /// Pins and limits of its services.
    in_force: Vec<Value>,
}

/// Prints the load of each backend, its services, and the cause of its alert.
pub(super) async fn run(args: ExplainArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let kinds = [RecordKind::GatewayService, RecordKind::Placement];
    let view = View::read(&connection, &Scope::All, &kinds).await?;
    let (names, service) = match args.subject.contains('/') {
        true => {
            let service = ServiceName::new(args.subject.clone())
                .map_err(|error| Failure::refused(error, "write TENANT/SERVICE"))?;
            (backends_of(&view, &service)?, Some(service))
        }
        false => {
            let backend = Label::new(args.subject.clone())
                .map_err(|error| Failure::refused(error, "write the name of a backend, or TENANT/SERVICE"))?;
            let known = View::gateway_backends(&connection).await?.gateway_backends;
            if !known.contains_key(&backend) {
                let hint = "see `fairmesh get gateway-backends`";
                return Err(Failure::refused(format!("there is no backend {backend}"), hint));
            }
            (vec![backend], None)
        }
    };
    let (mut read, _) = backend_load_text::read(&connection).await?;
    let service = service.as_ref();
    let explained = names.into_iter().map(|backend| {
        let load = read.remove(backend.as_str());
        let alert = load.as_ref().and_then(|load| load.alert.as_ref());
        let follows = alert.and_then(|alert| load_actions::follows(alert, &view));
        Explained { follows, load, in_force: in_force::items(&view, &backend, service), backend }
    });
    let explained: Vec<Explained> = explained.collect();
    let text: Vec<String> = explained.iter().map(|one| one.text(service)).collect();
    let items: Vec<Value> = explained.iter().map(Explained::item).collect();
    let acts = service.and_then(|service| view.services.get(service)).map(load_actions::in_force);
    let mut acts: Vec<String> = acts.into_iter().flatten().collect();
    if let Some(service) = service {
        acts.extend(refused(&connection, service).await?);
    }
    let acts: String = acts.iter().map(|act| format!("{act}\n")).collect();
    output::print_one(args.output.format(), &items, &(text.join("\n") + &acts))
}

/// What the controller does not do for a service, and why; a launch that fails included.
async fn refused(connection: &Connection, service: &ServiceName) -> Result<Vec<String>, Failure> {
    let (name, text) = (service.to_string(), format!(" for {service}"));
    let rows = status::refused(connection).await?.into_iter();
    let of_service = rows.filter(|row| row[0] == name || row[1].contains(&text));
    Ok(of_service.map(|row| row.join(": ")).collect())
}

/// The backends on which a service is placed.
fn backends_of(view: &View, service: &ServiceName) -> Result<Vec<Label>, Failure> {
    let placed = view.services.get(service).and_then(|one| one.placement.as_ref());
    let placed = placed.ok_or_else(|| {
        let hint = "every replica serves it; `kind: GatewayService` asks for backends, and `fairmesh gateway status` says what is refused";
        Failure::refused(format!("{service} is placed on no backends"), hint)
    })?;
    Ok(placed.value.backends().cloned().collect())
}

impl Explained {
    fn text(&self, service: Option<&ServiceName>) -> String {
        let Self { backend, load, follows, .. } = self;
        let Some(load) = load else {
            return format!("{backend}: no replica reports its load; see `fairmesh gateway status`\n");
        };
        let mut text = format!(
            "{backend}: CPU {}, usually {}; {} new connections a second\n",
            backend_load_text::cpu(load),
            output::decimal(load.usual_cpu_millicores as f64 / 1e3, 2),
            backend_load_text::rate(load.connections),
        );
        match &load.alert {
            Some(alert) => text += &format!("  {}\n", backend_load_text::sentence(alert)),
            None => text += "  within its CPU limits\n",
        }
        text.extend(follows.iter().map(|follows| format!("  {follows}\n")));
        let is_shown = |one: &&GatewayServiceLoad| service.is_none_or(|name| one.service == name.to_string());
        let rows: Vec<Vec<String>> = load.services.iter().filter(is_shown).map(row).collect();
        if rows.is_empty() { text } else { text + "\n" + &output::table(HEAD, &rows) }
    }

    fn item(&self) -> Value {
        json!({
            "backend": self.backend.as_str(),
            "load": self.load.as_ref().map(backend_load_text::item),
            "follows": self.follows,
            "inForce": self.in_force,
        })
    }
}

fn row(one: &GatewayServiceLoad) -> Vec<String> {
    let rates = [one.requests, one.usual_requests, one.errors, one.connections, one.usual_connections];
    std::iter::once(one.service.clone()).chain(rates.map(backend_load_text::rate)).collect()
}

#[cfg(test)]
mod tests {
    use fairmesh_wire::v1::GatewayAlert;

    use super::*;

    fn load() -> GatewayBackendLoad {
        let service = |name: &str, requests| GatewayServiceLoad {
            service: name.into(),
            requests,
            usual_requests: 100_000,
            ..Default::default()
        };
        GatewayBackendLoad {
            backend: "gw-1".into(),
            replicas: 1,
            cpu_millicores: 950,
            usual_cpu_millicores: 300,
            limit_millicores: 1_000,
            services: vec![service("red/web", 700_000), service("blue/web", 100_000)],
            alert: Some(GatewayAlert {
                age_ms: 12_300,
                cause: "growth".into(),
                service: "red/web".into(),
                reason: "calls of red/web have grown".into(),
                proposed_limit: 0,
            }),
            ..GatewayBackendLoad::default()
        }
    }

    #[test]
    fn gateway_explain_shows_overload_cause_and_services_of_backend() {
        let follows = Some("red/web gets no further backend".to_owned());
        let (backend, in_force) = (Label::new("gw-1").unwrap(), Vec::new());
        let explained = Explained { backend, load: Some(load()), follows, in_force };
        let text = explained.text(None);
        for part in [
            "gw-1: CPU 0.95 of 1.00 (95%), usually 0.30",
            "too much CPU for 12 s: calls of red/web have grown",
            "  red/web gets no further backend",
            "red/web",
            "blue/web",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let blue = ServiceName::new("blue/web").unwrap();
        let text = explained.text(Some(&blue));
        assert!(text.contains("blue/web") && !text.contains("red/web  "), "{text}");
    }

    #[test]
    fn gateway_backend_without_reports_is_not_shown_as_idle() {
        let (backend, in_force) = (Label::new("gw-1").unwrap(), Vec::new());
        let explained = Explained { backend, load: None, follows: None, in_force };
        assert!(explained.text(None).contains("no replica reports"));
        assert_eq!(explained.item()["load"], Value::Null);
    }
}
