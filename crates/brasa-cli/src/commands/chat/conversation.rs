//! The messages of a conversation, and which of them the model still sees.

use brasa::tokenizer::ChatOptions;
use brasa::{Message, Model};

use crate::failure::Failure;

/// Most free tokens that are reserved for an answer before older turns are dropped.
const MOST_ROOM: usize = 256;

/// A list of messages, the system prompt first.
pub struct Conversation {
    messages: Vec<Message>,
    /// Number of leading messages that are not turns: the system prompt.
    kept: usize,
    /// Index of the first message after `kept` that the model sees. Older turns no longer fit.
    first: usize,
}

/// Whether the oldest turns are dropped if the context is full.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest turns are hidden from the model.
    DropOldest,
    /// The question is refused.
    Refuse,
}

/// The prompt for an answer.
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Number of turns that were dropped for this prompt.
    pub dropped: usize,
}

impl Conversation {
    /// A conversation that begins with `messages`. Leading system messages are never dropped.
    pub fn new(messages: Vec<Message>) -> Self {
        let kept = messages.iter().take_while(|message| is_system(message)).count();
        Self { messages, kept, first: kept }
    }

    /// All messages.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Number of questions.
    pub fn turns(&self) -> usize {
        turns(&self.messages[self.kept..])
    }

    /// Number of questions that the model sees.
    pub fn seen_turns(&self) -> usize {
        turns(&self.messages[self.first..])
    }

    /// Adds a question.
    pub fn ask(&mut self, text: String) {
        self.messages.push(Message::new("user", text));
    }

    /// Adds the answer to the last question.
    pub fn answered(&mut self, answer: Message) {
        self.messages.push(answer);
    }

    /// Removes the last question and its answer, if there is one; returns false if there is no question.
    pub fn undo(&mut self) -> bool {
        if !self.unanswer() {
            return false;
        }
        self.messages.pop();
        self.first = self.first.min(self.messages.len());
        true
    }

    /// Removes the last answer, so that the last question can be answered again; returns false if there is no question.
    pub fn unanswer(&mut self) -> bool {
        let question = self.messages.iter().rposition(|message| message.role == "user");
        match question.filter(|&question| question >= self.kept) {
            Some(question) => self.messages.truncate(question + 1),
            None => return false,
        }
        // Dropped turns come before the last question, except if that one was taken back.
        self.first = self.first.min(self.messages.len() - 1);
        true
    }

    /// Removes all messages but the system prompt.
    pub fn clear(&mut self) {
        self.messages.truncate(self.kept);
        self.first = self.kept;
    }

    /// The token ids of the conversation, with room for an answer of `most_tokens`. If turns do not fit into the model's context,
    /// the oldest are dropped until a quarter of it is free, so that the next questions drop none.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if the last question alone does not fit, or if turns may not be dropped; then nothing has changed.
    pub fn prompt(
        &mut self,
        model: &Model,
        template: &ChatOptions<'_>,
        most_tokens: Option<usize>,
        when_full: WhenFull,
    ) -> Result<Prompt, Failure> {
        let context = model.context();
        let room = most_tokens.unwrap_or(MOST_ROOM).min(MOST_ROOM).min(context / 8).max(1);
        let ids = self.ids(self.first, model, template)?;
        if ids.len() + room <= context {
            return Ok(Prompt { ids, dropped: 0 });
        }
        let starts: Vec<usize> = (self.first + 1..self.messages.len())
            .filter(|&index| self.messages[index].role == "user")
            .collect();
        if when_full == WhenFull::Refuse || starts.is_empty() {
            // An answer without much room is better than none.
            return if ids.len() < context {
                Ok(Prompt { ids, dropped: 0 })
            } else {
                Err(too_long(ids.len(), context, self.seen_turns()))
            };
        }
        // Fewer messages make a shorter prompt: the first start that leaves enough free is searched for by halves.
        let enough = context - (context / 4).max(room).min(context - 1);
        let (mut low, mut high) = (0, starts.len() - 1);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.ids(starts[middle], model, template)?.len() <= enough {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let ids = self.ids(starts[low], model, template)?;
        if ids.len() >= context {
            return Err(too_long(ids.len(), context, 1));
        }
        let dropped = turns(&self.messages[self.first..starts[low]]);
        self.first = starts[low];
        Ok(Prompt { ids, dropped })
    }

    /// Number of tokens of the system prompt and everything else before the first question.
    pub fn system_tokens(&self, model: &Model, template: &ChatOptions<'_>) -> Result<usize, Failure> {
        let prompt = |question: &str| {
            let mut messages = self.messages[..self.kept].to_vec();
            messages.push(Message::new("user", question));
            model.chat_prompt_with(&messages, template)
        };
        let (one, other) = (prompt("a")?, prompt("5")?);
        Ok(one.iter().zip(&other).take_while(|(one, other)| one == other).count())
    }

    /// The token ids of the system prompt and the messages from index `first` on.
    fn ids(&self, first: usize, model: &Model, template: &ChatOptions<'_>) -> Result<Vec<u32>, Failure> {
        if first == self.kept {
            return Ok(model.chat_prompt_with(&self.messages, template)?);
        }
        let seen = [&self.messages[..self.kept], &self.messages[first..]].concat();
        Ok(model.chat_prompt_with(&seen, template)?)
    }
}

fn is_system(message: &Message) -> bool {
    message.role == "system" || message.role == "developer"
}

fn turns(messages: &[Message]) -> usize {
    messages.iter().filter(|message| message.role == "user").count()
}

fn too_long(tokens: usize, context: usize, turns: usize) -> Failure {
    let (what, remedy) = if turns > 1 {
        ("the conversation", "/clear forgets it; --context-policy slide drops the oldest turns; ")
    } else {
        ("the question with what goes before it", "shorten it; ")
    };
    Failure::Failed(format!(
        "{what} takes {tokens} tokens, the context holds {context}\nhint: {remedy}-c gives a larger context"
    ))
}
