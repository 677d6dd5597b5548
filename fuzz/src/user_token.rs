//! Tokens of users, and the keys of their issuer. None panics, no token is accepted that no key signed, and what is accepted is
//! within its bounds.

use std::{sync::OnceLock, time::Duration};

use fairmesh_control::{OidcConfig, fuzzing};

/// The key of RFC 8037, appendix A. Its token there has no claims, so that no token of it is good.
const JWKS: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwaaPJHURo"}]}"#;

/// The time of all tokens, since 1970.
const NOW: Duration = Duration::from_secs(1_800_000_000);

fn config() -> &'static OidcConfig {
    static CONFIG: OnceLock<OidcConfig> = OnceLock::new();
    CONFIG.get_or_init(|| OidcConfig {
        issuer: "https://idp.example".into(),
        client_id: "fairmesh".into(),
        jwks: "jwks.json".parse().expect("it is a file"),
        ca_file: None,
        username_claim: "sub".into(),
        groups_claim: "groups".into(),
    })
}

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    if let Some(keys) = fuzzing::keys_of(data) {
        assert!(keys <= 100, "{keys} keys");
    }
    if let Ok(token) = str::from_utf8(data) {
        assert!(
            fuzzing::user_of_token(config(), (token, JWKS.as_bytes()), NOW).is_none(),
            "no key signed it"
        );
    }
    if let Some(user) = fuzzing::user_of_claims(config(), data, NOW) {
        assert!(user.groups.len() <= 256 && user.expires_at + Duration::from_secs(60) > NOW);
        for name in user.groups.iter().chain([&user.name]) {
            assert!(!name.is_empty() && name.len() <= 512 && !name.contains(char::is_control), "{name:?}");
        }
    }
}
