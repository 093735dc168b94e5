use std::fmt;

/// The calls that a request allows or requires, as OpenAI's `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls.
    None,
    /// At least one call.
    Required,
    /// A call of the tool of this name.
    Named(String),
    /// Calls of the tools of these names only.
    Allowed {
        /// The names.
        names: Vec<String>,
        /// True if at least one call is wanted.
        required: bool,
    },
}

impl ToolChoice {
    /// True if an answer may call the tool of that name.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Self::Auto | Self::Required => true,
            Self::None => false,
            Self::Named(only) => only == name,
            Self::Allowed { names, .. } => names.iter().any(|allowed| allowed == name),
        }
    }

    /// True if an answer has to call a tool.
    pub fn is_required(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_) | Self::Allowed { required: true, .. })
    }
}

impl fmt::Display for ToolChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::None => out.write_str("none"),
            Self::Required => out.write_str("required"),
            Self::Named(name) => write!(out, "function {name}"),
            Self::Allowed { names, .. } => write!(out, "one of {}", names.join(", ")),
        }
    }
}
