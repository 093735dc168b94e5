/// Splits the text of an error or a warning into the problem and the remedy, which follows as a line `hint:`. For places with a
/// single line, such as a field of JSON.
///
/// ```
/// let error = "model.gguf: 10 bytes, but its tensors need 20\nhint: the file is incomplete; download it again";
/// let (problem, remedy) = brasa::split_hint(error);
/// assert_eq!(problem, "model.gguf: 10 bytes, but its tensors need 20");
/// assert_eq!(remedy, Some("the file is incomplete; download it again"));
/// assert_eq!(brasa::split_hint("no tokens"), ("no tokens", None));
/// ```
pub fn split_hint(message: &str) -> (&str, Option<&str>) {
    match message.split_once("\nhint: ") {
        Some((problem, remedy)) => (problem, Some(remedy)),
        None => (message, None),
    }
}
