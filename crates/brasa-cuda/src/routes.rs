//! Ways of computing that wait for their measurement: each stands beside the one that is used unless it is asked for.

/// The environment variable that names routes.
const ROUTES_VARIABLE: &str = "BRASA_CUDA_ROUTES";

/// How a product of few rows shares its inputs among multiprocessors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FewRows {
    /// Into parts of one length, whose sums a launch of their own adds.
    #[default]
    Parts,
    /// Into a stretch of one length for each block; whoever ends an output's last part adds its parts (`kernels/hopper/stream.cuh`).
    Stream,
}

/// How the launches of a step of few rows are queued, where no interpreter runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launches {
    /// One after the other.
    #[default]
    Queued,
    /// As one CUDA graph.
    Graph,
}

/// Routes that a program takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Products of 2 to 64 rows.
    pub few_rows: FewRows,
    /// Launches of steps of up to 64 rows.
    pub launches: Launches,
}

/// A name that is none of a route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ROUTES_VARIABLE} names `{name}`, expected some of {}, divided by commas", Routes::NAMES.join(", "))]
pub struct UnknownRoute {
    /// The name.
    pub name: String,
}

impl Routes {
    /// Names that `BRASA_CUDA_ROUTES` takes.
    pub const NAMES: [&str; 2] = ["stream", "graph"];

    /// The routes that `BRASA_CUDA_ROUTES` names, divided by commas; the default ones without it.
    ///
    /// # Errors
    ///
    /// [`UnknownRoute`].
    pub fn from_environment() -> Result<Self, UnknownRoute> {
        std::env::var(ROUTES_VARIABLE).map_or(Ok(Self::default()), |names| Self::named(&names))
    }

    /// The routes of these names, divided by commas.
    ///
    /// # Errors
    ///
    /// [`UnknownRoute`].
    pub fn named(names: &str) -> Result<Self, UnknownRoute> {
        let mut routes = Self::default();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "stream" => routes.few_rows = FewRows::Stream,
                "graph" => routes.launches = Launches::Graph,
                _ => return Err(UnknownRoute { name: name.into() }),
            }
        }
        Ok(routes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_named() {
        assert_eq!(Routes::named(""), Ok(Routes::default()));
        assert_eq!(Routes::named(" stream,"), Ok(Routes { few_rows: FewRows::Stream, ..Routes::default() }));
        assert_eq!(
            Routes::named("graph,stream"),
            Ok(Routes { few_rows: FewRows::Stream, launches: Launches::Graph })
        );
        let error = Routes::named("stream,strem").unwrap_err().to_string();
        assert_eq!(
            error,
            "BRASA_CUDA_ROUTES names `strem`, expected some of stream, graph, divided by commas"
        );
    }
}
