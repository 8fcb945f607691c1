//! Parameters of URLs.

/// Returns a parameter of a URL's query; `None` if it is missing. The values of the parameters here
/// have no characters that URLs encode.
pub fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
    values.next()
}
