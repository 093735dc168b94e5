use std::fmt;

/// The calls that a request allows or requires, as OpenAI's `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The answer must have no calls.
    None,
    /// The answer must have at least one call.
    Required,
    /// The answer must call the tool with this name.
    Named(String),
    /// The answer may call only the tools with these names.
    Allowed {
        /// Names of the allowed tools.
        names: Vec<String>,
        /// True if the answer must have at least one call.
        required: bool,
    },
}

impl ToolChoice {
    /// True if an answer may call the tool `name`.
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
