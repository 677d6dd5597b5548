//! Warnings about documents that admit more callers than before, or none to all services without rules.

use std::{borrow::Cow, cmp::Ordering};

use fairmesh_console::{
    failure::Failure,
    output,
    view_reader::{ReadView as _, Scope, View},
};
use fairmesh_model::{
    AddressPrefix, Authorization, AuthorizationMode, AuthorizationRule, CallerMatch, DefaultAuthorization,
    Match, PathMatch, Record, RecordKey, RecordKind, ServiceName, alternatives_cover, spec::Resource,
};
use fairmesh_wire::{handshake::Connection, record_encoding};

/// One warning for each resource that widens access, or narrows it in the whole mesh.
pub(super) fn widened(known: &View, resources: &[&Resource]) -> Vec<String> {
    let default = default_in_force(known);
    let warning = |resource: &&Resource| match resource {
        Resource::ServiceAuthorization(name, rules) => of_service(known, name, rules),
        Resource::Policy(name, policy) => of_service(known, name, policy.authorization.as_deref()?),
        Resource::Authorization(new) => of_default(default, *new),
        _ => None,
    };
    resources.iter().filter_map(warning).collect()
}

/// Prints a warning if access widens, or narrows in the whole mesh, once a record has the value `after`, or is deleted (`None`).
pub(crate) async fn warn_of_record(
    connection: &Connection,
    key: &RecordKey,
    after: Option<&[u8]>,
) -> Result<(), Failure> {
    // What is not understood here is of a later release, and the control plane decides.
    let after = after.and_then(|value| record_encoding::decode(key, value).ok());
    let warning = match (key, after) {
        (RecordKey::DefaultAuthorization, after) => {
            let new = match after {
                Some(Record::DefaultAuthorization(new)) => new,
                _ => DefaultAuthorization::default(),
            };
            let known = View::topology(connection).await?;
            of_default(default_in_force(&known), new)
        }
        (RecordKey::Authorization(name), after) => {
            let kinds = [RecordKind::Policy, RecordKind::Authorization];
            let known = View::read(connection, &Scope::Service(name.clone()), &kinds).await?;
            match after {
                Some(Record::Authorization(rules)) => of_service(&known, name, &rules),
                _ => without_rules(&known, name),
            }
        }
        _ => None,
    };
    warning.into_iter().for_each(output::warn);
    Ok(())
}

/// The default of the mesh. Where it cannot be read, processes refuse calls without rules.
fn default_in_force(known: &View) -> DefaultAuthorization {
    match known.unreadable.contains_key(&RecordKey::DefaultAuthorization) {
        true => DefaultAuthorization::Deny,
        false => known.authorization.unwrap_or_default(),
    }
}

/// The rules of a service, if it has any. Where its policy cannot be read, processes refuse its calls, as without a rule
/// that allows one.
fn rules_in_force<'a>(known: &'a View, name: &ServiceName) -> Option<Cow<'a, Authorization>> {
    if known.unreadable.contains_key(&RecordKey::Policy(name.clone())) {
        return Some(Cow::Owned(Authorization::default()));
    }
    known.services.get(name)?.rules().map(Cow::Borrowed)
}

fn of_default(old: DefaultAuthorization, new: DefaultAuthorization) -> Option<String> {
    let warning = match openness(new).cmp(&openness(old)) {
        Ordering::Greater => {
            "access widens to all services without rules: calls are made that were refused until now"
        }
        Ordering::Less => {
            "access narrows to all services without rules: their calls are refused from now on, with 403; 'default: audit' only \
             counts and logs the calls that would be refused"
        }
        Ordering::Equal => return None,
    };
    Some(warning.to_owned())
}

/// The warning about a service whose rules are deleted.
fn without_rules(known: &View, name: &ServiceName) -> Option<String> {
    let refused = rules_in_force(known, name)?.mode != AuthorizationMode::Audit;
    let is_open = default_in_force(known) != DefaultAuthorization::Deny;
    (refused && is_open)
        .then(|| format!("access to {name} widens: without rules, calls are made that its rules refused"))
}

/// Notes about policies without rules for services that keep the rules of an earlier release.
pub(super) fn kept(known: &View, resources: &[&Resource]) -> Vec<String> {
    let note = |resource: &&Resource| {
        let Resource::Policy(name, policy) = resource else { return None };
        let one = known.services.get(name)?;
        let is_kept = policy.authorization.is_none() && one.rules().is_some() && one.authorization.is_none();
        is_kept.then(|| {
            format!(
                "the rules of {name} stay, though this policy has none; write them as 'kind: Authorization' with 'service: \
                 {name}' ('fairmesh get authorization {name} -o yaml'), or remove them with 'fairmesh delete authorization {name}'"
            )
        })
    };
    resources.iter().filter_map(note).collect()
}

fn of_service(known: &View, name: &ServiceName, new: &Authorization) -> Option<String> {
    let old = rules_in_force(known, name);
    let reasons = reasons(old.as_deref(), new, default_in_force(known));
    (!reasons.is_empty()).then(|| format!("access to {name} widens: {}", reasons.join("; ")))
}

/// Reasons why calls are allowed that were refused before.
fn reasons(old: Option<&Authorization>, new: &Authorization, default: DefaultAuthorization) -> Vec<String> {
    let Some(old) = old else {
        // If all calls were allowed, new rules can only refuse some of them.
        let opens = default == DefaultAuthorization::Deny && new.rules.iter().any(|rule| !rule.denies);
        return if opens {
            vec!["it had no rules, and calls without rules are refused".into()]
        } else {
            vec![]
        };
    };
    if old.mode == AuthorizationMode::Audit {
        return Vec::new();
    }
    let mut reasons = Vec::new();
    if new.mode == AuthorizationMode::Audit {
        reasons.push("calls that no rule allows are made, and only counted ('mode: audit')".to_owned());
    }
    let is_covered = |rule: &AuthorizationRule| old.rules.iter().any(|before| covers(before, rule));
    let added = new.rules.iter().filter(|rule| !rule.denies && !is_covered(rule));
    reasons.extend(added.map(|rule| format!("rule '{}' allows {}", rule.name, callers(rule))));
    let gone = old.rules.iter().filter(|rule| rule.denies && !new.rules.contains(rule));
    reasons.extend(gone.map(|rule| format!("rule '{}' no longer refuses {}", rule.name, callers(rule))));
    let allows =
        |rules: &Authorization| rules.rules.is_empty() || rules.rules.iter().any(|rule| !rule.denies);
    if allows(old) && !allows(new) && default != DefaultAuthorization::Deny {
        reasons.push("only rules are left that refuse calls, and all others are allowed".to_owned());
    }
    let trusted = new.intermediaries.iter().filter(|one| !old.intermediaries.contains(one));
    reasons.extend(trusted.map(|one| format!("{} may call for others", one.as_str())));
    reasons
}

/// Whether an old rule allows everything that a new rule allows.
fn covers(before: &AuthorizationRule, new: &AuthorizationRule) -> bool {
    // A rule without callers allows those of other trust domains no more than '*' does.
    let has_callers = match before.from.is_empty() {
        true => !new.from.iter().any(is_full_id),
        false => alternatives_cover(&before.from, &new.from, caller_covers),
    };
    !before.denies
        && has_callers
        && alternatives_cover(&before.methods, &new.methods, |before, new| before == new)
        && alternatives_cover(&before.paths, &new.paths, path_covers)
        && alternatives_cover(&before.sources, &new.sources, AddressPrefix::covers)
        && before.when.iter().all(|condition| new.when.contains(condition))
}

/// Whether a pattern names a trust domain. Another domain's callers are allowed only by their whole ids.
fn is_full_id(pattern: &CallerMatch) -> bool {
    pattern.as_str().starts_with("spiffe://")
}

fn caller_covers(before: &CallerMatch, new: &CallerMatch) -> bool {
    let is_path = !is_full_id(before) && !is_full_id(new);
    let (before, new) = (before.as_str(), new.as_str());
    before == new || is_path && before.strip_suffix('*').is_some_and(|start| new.starts_with(start))
}

fn path_covers(before: &PathMatch, new: &PathMatch) -> bool {
    let [before, new] = [before, new].map(|path| Match { path: Some(path.clone()), ..Match::default() });
    before.covers(&new)
}

fn callers(rule: &AuthorizationRule) -> String {
    match rule.from.is_empty() {
        true => "all callers".to_owned(),
        false => rule.from.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(", "),
    }
}

fn openness(default: DefaultAuthorization) -> u8 {
    match default {
        DefaultAuthorization::Deny => 0,
        DefaultAuthorization::Audit | DefaultAuthorization::Allow => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, denies: bool, from: &str) -> AuthorizationRule {
        let from = vec![CallerMatch::new(from).unwrap()];
        AuthorizationRule { denies, ..AuthorizationRule::allowing(name.parse().unwrap(), from) }
    }

    fn rules(rules: &[AuthorizationRule]) -> Authorization {
        Authorization { rules: rules.to_vec(), ..Authorization::default() }
    }

    #[test]
    fn apply_warns_of_added_allow_and_removed_deny_rules() {
        use DefaultAuthorization::{Allow, Deny};
        let [web, any, bad] =
            [rule("web", false, "shop/web"), rule("any", false, "*"), rule("bad", true, "x/y")];
        let before = rules(&[web.clone(), bad.clone()]);
        assert_eq!(reasons(Some(&before), &before, Allow), Vec::<String>::new());
        assert_eq!(reasons(Some(&before), &rules(std::slice::from_ref(&bad)), Deny), Vec::<String>::new());
        assert_eq!(
            reasons(Some(&before), &rules(&[web.clone(), any, bad.clone()]), Allow),
            ["rule 'any' allows *"]
        );
        assert_eq!(reasons(Some(&before), &rules(&[web]), Allow), ["rule 'bad' no longer refuses x/y"]);
        assert_eq!(reasons(Some(&before), &rules(&[bad]), Allow).len(), 1, "all others are allowed");
        let on_condition =
            AuthorizationRule { sources: vec!["10.0.0.0/8".parse().unwrap()], ..before.rules[0].clone() };
        assert_eq!(
            reasons(Some(&rules(&[on_condition.clone(), before.rules[1].clone()])), &before, Allow),
            ["rule 'web' allows shop/web"]
        );
        assert_eq!(reasons(Some(&before), &rules(&[on_condition, before.rules[1].clone()]), Allow).len(), 0);
        let audit = Authorization { mode: AuthorizationMode::Audit, ..before.clone() };
        assert_eq!(reasons(Some(&before), &audit, Allow).len(), 1);
        assert_eq!(reasons(None, &before, Allow), Vec::<String>::new(), "all were allowed");
        assert_eq!(reasons(None, &before, Deny).len(), 1);
    }

    #[test]
    fn changed_default_draws_warning_in_both_directions() {
        use DefaultAuthorization::{Allow, Audit, Deny};
        for (old, new, word) in [(Deny, Allow, "widens"), (Allow, Deny, "narrows"), (Audit, Deny, "narrows")]
        {
            let warning = of_default(old, new).unwrap();
            assert!(warning.starts_with(&format!("access {word} to all services")), "{warning}");
        }
        assert_eq!((of_default(Allow, Audit), of_default(Deny, Deny)), (None, None));
    }

    #[test]
    fn narrowed_rule_draws_no_warning_and_widened_one_does() {
        use PathMatch::{Exact, Prefix};
        let of = |from: &str, path: Option<PathMatch>, source: &str| AuthorizationRule {
            paths: path.into_iter().collect(),
            sources: vec![source.parse().unwrap()],
            ..rule("web", false, from)
        };
        let below = |path: &str| Some(Prefix(path.to_owned()));
        let pairs = [
            (of("shop/*", None, "10.0.0.0/8"), of("shop/web", None, "10.0.0.0/8")),
            (of("shop/*", None, "10.0.0.0/8"), of("shop/web*", None, "10.0.0.0/8")),
            (of("*", None, "10.0.0.0/8"), of("shop/*", None, "10.0.0.0/8")),
            (of("shop/web", below("/v1"), "10.0.0.0/8"), of("shop/web", below("/v1/x"), "10.0.0.0/8")),
            (
                of("shop/web", below("/v1"), "10.0.0.0/8"),
                of("shop/web", Some(Exact("/v1".into())), "10.0.0.0/8"),
            ),
            (of("shop/web", None, "10.0.0.0/8"), of("shop/web", below("/v1"), "10.0.0.0/8")),
            (of("shop/web", None, "10.0.0.0/8"), of("shop/web", None, "10.1.0.0/16")),
            (of("shop/web", None, "fd00::/8"), of("shop/web", None, "fd00:1::/32")),
        ];
        for (wide, narrow) in pairs {
            let [wide, narrow] = [wide, narrow].map(|rule| rules(&[rule]));
            let found = |old: &Authorization, new: &Authorization| {
                reasons(Some(old), new, DefaultAuthorization::Deny)
            };
            assert_eq!(found(&wide, &narrow), Vec::<String>::new(), "{wide:?} {narrow:?}");
            assert_eq!(found(&narrow, &wide).len(), 1, "{wide:?} {narrow:?}");
        }
        // Callers of other trust domains match only full ids.
        let other = rule("web", false, "spiffe://other/shop/web");
        assert!(!covers(&rule("web", false, "*"), &other));
        let all = AuthorizationRule { from: Vec::new(), ..rule("web", false, "*") };
        assert!(!covers(&all, &other));
        assert!(covers(&all, &rule("web", false, "shop/web")));
    }
}
