use std::{fmt, str::FromStr};

/// Place of the trace id in a [`TraceLink`].
const ID: &str = "{trace}";

/// URL of a trace in another tracing system, to which processes export too. Parsed from an `http` or `https` URL
/// with `{trace}` in place of the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLink(String);

/// Error: the text is no [`TraceLink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTraceLink;

impl TraceLink {
    /// Returns the URL of a trace. The id has 32 hexadecimal digits.
    pub fn of(&self, id: u128) -> String {
        self.0.replace(ID, &format!("{id:032x}"))
    }
}

impl FromStr for TraceLink {
    type Err = InvalidTraceLink;

    fn from_str(text: &str) -> Result<Self, InvalidTraceLink> {
        // Other schemes, such as `javascript`, would run in the page that shows the link.
        let place = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let has_host = place.is_some_and(|place| !place.is_empty() && !place.starts_with(['/', '?', '#']));
        let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        match has_host && is_printable && text.contains(ID) {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidTraceLink),
        }
    }
}

impl fmt::Display for InvalidTraceLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "write an http or https URL with {ID} in place of the id, such as https://jaeger.example/trace/{ID}"
        )
    }
}

impl std::error::Error for InvalidTraceLink {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_link_is_web_address_with_place_of_id() {
        let link: TraceLink = "https://jaeger.example/trace/{trace}".parse().unwrap();
        assert_eq!(link.of(0xab), format!("https://jaeger.example/trace/{:030}ab", 0));
        for text in [
            "https://jaeger.example/trace/",
            "javascript:alert('{trace}')",
            "https:///{trace}",
            "https://jaeger.example/ {trace}",
            "{trace}",
        ] {
            assert_eq!(text.parse::<TraceLink>(), Err(InvalidTraceLink), "{text}");
        }
    }
}
