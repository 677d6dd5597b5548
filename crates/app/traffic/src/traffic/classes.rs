//! `fairmesh traffic classes`.

use std::{collections::BTreeMap, fmt::Write as _, net::SocketAddr, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::OutputArgs,
    failure::Failure,
    output::{self, decimal},
};
use fairmesh_model::{
    ServiceName,
    spec::{read_duration, write_duration},
};
use fairmesh_planner::{PathTemplate, PathTemplates, ProposedClass, propose_classes};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use crate::tap::{self, Line};

/// Queue size for lines of all proxies that wait to be counted.
const QUEUE: usize = 256;
/// Factor from one to percent.
const PERCENT: f64 = 100.0;

/// Arguments of `fairmesh traffic classes`.
#[derive(Debug, Args)]
pub struct ClassesArgs {
    /// The service, as tenant/service.
    service: ServiceName,
    /// The admin port of a proxy through which the service is called; may be repeated.
    #[arg(long = "admin", value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    proxies: Vec<SocketAddr>,
    /// How long requests are counted.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = read_duration)]
    time: Duration,
    /// One of N requests.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    one_in: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Proposes routes with classes for the requests that proxies forward during the measurement.
pub(super) async fn classes(args: ClassesArgs) -> Result<(), Failure> {
    let templates = observed(&args).await?;
    if templates.left_out() > 0 {
        output::warn(format!("{} requests have no part: their paths are too many", templates.left_out()));
    }
    let templates = templates.templates();
    let classes = propose_classes(&templates);
    let document: Vec<_> = classes.iter().map(document).collect();
    output::print_one(args.output.format(), &document, &text(&args.service, &templates, &classes))
}

/// Counts requests until the time is over, or every proxy is gone.
async fn observed(args: &ClassesArgs) -> Result<PathTemplates, Failure> {
    let (sender, mut lines) = mpsc::channel(QUEUE);
    let query = tap::query_of(&args.service, args.one_in);
    for proxy in args.proxies.clone() {
        let (sender, query) = (sender.clone(), query.clone());
        tokio::spawn(async move {
            let ended = tap::read(proxy, &query, &sender).await;
            let _ = sender.send((proxy, ended.err().map_or(Line::Ended, Line::Failed))).await;
        });
    }
    drop(sender);
    output::note(format!("requests are counted for {}", write_duration(args.time)));
    let (mut templates, mut gone) = (PathTemplates::default(), None);
    let count = async {
        while let Some((_, line)) = lines.recv().await {
            match line {
                Line::Request(request) => observe(&mut templates, &request),
                Line::Failed(failure) => gone = Some(failure),
                Line::Ended => {}
            }
        }
    };
    let is_over = timeout(args.time, count).await.is_err();
    match gone {
        Some(failure) if !is_over => Err(failure),
        _ => Ok(templates),
    }
}

/// Counts a request if a server answered it. Other requests are not counted, because they did not cost the server
/// anything.
fn observe(templates: &mut PathTemplates, request: &Value) {
    let text = |name: &str| request[name].as_str();
    if let (Some(method), Some(path), None, Some(ms)) =
        (text("method"), text("path"), text("fault"), request["totalMs"].as_f64())
    {
        templates.observe(method, path, ms);
    }
}

fn text(service: &ServiceName, templates: &[PathTemplate], classes: &[ProposedClass]) -> String {
    if classes.is_empty() {
        let seen: u64 = templates.iter().map(|one| one.requests).sum();
        output::note(format!(
            "{seen} requests are too few to propose classes: count longer (--for), or name the proxies of more callers (--admin)"
        ));
        return String::new();
    }
    let names = names(classes);
    let mut rows = Vec::new();
    for (class, name) in classes.iter().zip(&names) {
        for one in &class.templates {
            rows.push(vec![
                name.clone().unwrap_or_else(|| "-".to_owned()),
                one.method.clone(),
                shown(one),
                one.requests.to_string(),
                decimal(one.mean_cost, 1) + " ms",
            ]);
        }
    }
    let table = output::table(&["CLASS", "METHOD", "PATH", "REQUESTS", "MEAN TIME"], &rows);
    let routes = routes(classes, &names);
    match routes.is_empty() {
        true => format!("{table}\nall requests cost about the same: no class is needed\n"),
        false => format!(
            "{table}\nkind: Policy\nservice: {service}\nroutes:            # before those that match the same requests\n{routes}"
        ),
    }
}

fn shown(template: &PathTemplate) -> String {
    if template.is_prefix { format!("{}/…", template.path) } else { template.path.clone() }
}

/// Names the classes by their mean time. The class with the most requests has no name, since its calls need no class.
fn names(classes: &[ProposedClass]) -> Vec<Option<String>> {
    let most = classes.iter().map(|class| class.share).fold(0.0, f64::max);
    let mut used = BTreeMap::<String, u32>::new();
    let name = |class: &ProposedClass| {
        let name = format!("about-{}ms", class.mean_cost.ceil());
        let count = used.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}-{count}") }
    };
    let named: Vec<_> = classes.iter().map(name).collect();
    classes.iter().zip(named).map(|(class, name)| (class.share < most).then_some(name)).collect()
}

/// Formats the routes of the classes as in a policy.
fn routes(classes: &[ProposedClass], names: &[Option<String>]) -> String {
    let mut routes = String::new();
    for (class, name) in classes.iter().zip(names) {
        let Some(name) = name else { continue };
        for (number, one) in class.templates.iter().enumerate() {
            let kind = match (one.is_prefix, one.path.contains('{')) {
                (true, _) => "prefix",
                (false, true) => "template",
                (false, false) => "exact",
            };
            let path = if one.path.is_empty() { "/" } else { &one.path };
            let (method, route) = (&one.method, format!("{name}-{}", number + 1));
            let _ = writeln!(
                routes,
                "  - {{name: {route}, match: {{path: {{{kind}: '{path}'}}, methods: [{method}]}}, class: {name}}}"
            );
        }
    }
    routes
}

fn document(class: &ProposedClass) -> Value {
    let template = |one: &PathTemplate| {
        json!({
            "method": one.method,
            "path": one.path,
            "isPrefix": one.is_prefix,
            "requests": one.requests,
            "meanMs": one.mean_cost,
        })
    };
    json!({
        "meanMs": class.mean_cost,
        "percentOfRequests": class.share * PERCENT,
        "templates": class.templates.iter().map(template).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_classes_are_proposed_except_for_most_frequent_one() {
        let mut templates = PathTemplates::default();
        for n in 0..60 {
            observe(&mut templates, &json!({"method": "GET", "path": format!("/items/{n}"), "totalMs": 2.0}));
        }
        for n in 0..30 {
            let path = format!("/search/{n}");
            observe(&mut templates, &json!({"method": "POST", "path": path, "totalMs": 41.5, "fault": null}));
        }
        observe(&mut templates, &json!({"method": "GET", "path": "/x", "totalMs": 9.0, "fault": "deadline"}));
        let templates = templates.templates();
        assert_eq!(templates.len(), 2, "a request without a server has no cost");
        let service = ServiceName::new("shop/catalog").unwrap();
        let text = text(&service, &templates, &propose_classes(&templates));
        let route = "  - {name: about-42ms-1, match: {path: {template: '/search/{id}'}, methods: [POST]}, class: about-42ms}\n";
        assert!(text.ends_with(route), "{text}");
        assert!(text.contains("kind: Policy\nservice: shop/catalog\n"), "{text}");
        assert_eq!(text.matches("class:").count(), 1, "{text}");
    }
}
