//! Text within pictures, which are XML.

/// Text in which no sign means something to XML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
