use fairmesh_model::MAX_TRAFFIC_CLASSES;

use super::PathTemplate;

/// Requests from which on a mean cost is believed.
const MIN_REQUESTS: u64 = 20;
/// Costs within this ratio are those of one class: the optimizer gains little from telling them apart.
const SAME_COST: f64 = 2.0;

/// Templates that cost about the same.
#[derive(Clone, Debug, PartialEq)]
pub struct ProposedClass {
    /// The templates, the cheapest first.
    pub templates: Vec<PathTemplate>,
    /// The mean cost of their requests.
    pub mean_cost: f64,
    /// The share of all requests that have enough evidence.
    pub share: f64,
}

/// Classes for templates, the cheapest first. Templates with fewer than 20 requests have none. A class begins where a template costs
/// more than twice the cheapest one of the class before it; beyond 16, the most expensive classes are one.
pub fn propose_classes(templates: &[PathTemplate]) -> Vec<ProposedClass> {
    let mut known: Vec<_> = templates.iter().filter(|one| one.requests >= MIN_REQUESTS).cloned().collect();
    known.sort_by(|a, b| a.mean_cost.total_cmp(&b.mean_cost));
    let all: u64 = known.iter().map(|one| one.requests).sum();
    let mut groups = Vec::<Vec<PathTemplate>>::new();
    for template in known {
        let is_full = groups.len() >= MAX_TRAFFIC_CLASSES;
        match groups.last_mut() {
            Some(group) if is_full || template.mean_cost <= group[0].mean_cost * SAME_COST => {
                group.push(template)
            }
            _ => groups.push(vec![template]),
        }
    }
    groups.into_iter().map(|templates| class_of(templates, all)).collect()
}

fn class_of(templates: Vec<PathTemplate>, all: u64) -> ProposedClass {
    let requests: u64 = templates.iter().map(|one| one.requests).sum();
    let cost: f64 = templates.iter().map(|one| one.mean_cost * one.requests as f64).sum();
    ProposedClass { templates, mean_cost: cost / requests as f64, share: requests as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(path: &str, requests: u64, mean_cost: f64) -> PathTemplate {
        PathTemplate { method: "GET".into(), path: path.into(), is_prefix: false, requests, mean_cost }
    }

    #[test]
    fn path_templates_are_grouped_into_classes_by_cost_without_rare_ones() {
        let templates = [
            template("/items/{id}", 700, 2.0),
            template("/search", 200, 9.0),
            template("/cart", 100, 3.5),
            template("/export", 19, 500.0),
        ];
        let classes = propose_classes(&templates);
        let paths: Vec<Vec<_>> = classes
            .iter()
            .map(|class| class.templates.iter().map(|one| one.path.as_str()).collect())
            .collect();
        assert_eq!(paths, [vec!["/items/{id}", "/cart"], vec!["/search"]]);
        assert!((classes[0].mean_cost - 2.1875).abs() < 1e-9 && (classes[0].share - 0.8).abs() < 1e-9);
        assert_eq!(propose_classes(&[]), []);
    }

    #[test]
    fn at_most_sixteen_path_classes_are_proposed() {
        let templates: Vec<_> = (0..20).map(|n| template(&format!("/p{n}"), 50, 3.0_f64.powi(n))).collect();
        let classes = propose_classes(&templates);
        assert_eq!((classes.len(), classes[15].templates.len()), (16, 5));
    }
}
