//! Escapes text for SVG pictures, which are XML.

/// Escapes the characters that have a meaning in XML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
