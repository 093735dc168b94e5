//! A running chat, which asks the model and shows its answers.

use brasa::tokenizer::ChatOptions;
use brasa::{AnswerForm, ContextPolicy, GenerateOptions, Model, Session, Turn, TurnOptions};

use super::answer;
use super::conversation::{Conversation, WhenFull};
use crate::failure::Failure;
use crate::paint::Paint;
use crate::{interrupt, output};

/// A running chat: its conversation, model, session and options.
pub struct Chat<'m> {
    pub model: &'m Model,
    pub session: Session,
    pub conversation: Conversation,
    pub template: &'m ChatOptions<'m>,
    pub options: GenerateOptions,
    pub when_full: WhenFull,
    pub paint: Paint,
    pub verbose: bool,
    /// The cost of the last answer, as text.
    pub stats: Option<String>,
}

impl Chat<'_> {
    /// Asks a question. The question is removed if there is no answer, since templates expect questions and answers to alternate.
    ///
    /// # Errors
    ///
    /// The errors of the template, and of an answer that did not begin.
    pub fn ask(&mut self, question: String) -> Result<(), Failure> {
        self.conversation.ask(question);
        self.answer()
    }

    /// Answers the last question of the conversation.
    ///
    /// # Errors
    ///
    /// The errors of [`ask`](Self::ask): the question is then removed.
    pub fn answer(&mut self) -> Result<(), Failure> {
        let answer = self.stream();
        match answer {
            Ok(answer::ShownAnswer { message, is_empty, end }) if !is_empty || end.is_none() => {
                self.conversation.answered(message);
                if let Some(end) = end {
                    output::note(&end);
                }
                Ok(())
            }
            Ok(answer::ShownAnswer { end, .. }) => {
                self.conversation.undo();
                output::note(&format!(
                    "{} (there was no answer yet: the question is forgotten)",
                    end.unwrap_or_default()
                ));
                Ok(())
            }
            Err(failure) => {
                self.conversation.undo();
                Err(failure)
            }
        }
    }

    fn stream(&mut self) -> Result<answer::ShownAnswer, Failure> {
        // A Ctrl-C from before the answer does not count.
        interrupt::take();
        let prompt =
            self.conversation.prompt(self.model, self.template, self.options.max_tokens, self.when_full)?;
        if prompt.dropped > 0 {
            let turns = match prompt.dropped {
                1 => "the oldest turn is".into(),
                dropped => format!("the {dropped} oldest turns are"),
            };
            output::note(&format!(
                "(the context of {} tokens is full: {turns} no longer seen)",
                self.model.context()
            ));
        }
        let mut options = self.options.clone();
        if let ContextPolicy::Slide { keep } = &mut options.context_policy {
            *keep = (*keep).max(self.conversation.system_tokens(self.model, self.template)?);
        }
        let form = options.mask.take().map_or(AnswerForm::Free, AnswerForm::Mask);
        let asked = TurnOptions { template: self.template.clone(), form, ..TurnOptions::default() };
        let Turn { prompt, mask, thoughts, .. } = self.model.turn_behind(prompt.ids, &asked)?;
        options.mask = mask;
        let mut stream = self.session.generate_ids(prompt, &options)?;
        let answer = answer::show(&mut stream, self.paint, thoughts);
        let metrics = stream.metrics();
        let stats = format!(
            "{}; context {} of {}",
            output::cost(metrics),
            metrics.prompt_tokens + metrics.generated_tokens,
            self.model.context(),
        );
        if self.verbose {
            output::note(&stats);
        }
        self.stats = Some(stats);
        answer
    }
}
