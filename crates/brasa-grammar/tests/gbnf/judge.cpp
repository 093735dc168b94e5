// llama.cpp's own judgement of texts by grammars. Made and run by judge.py.
//
// Reads a grammar's file name, then texts, one a line, with escapes \n, \t, \r, \\ and \xHH. Prints for each text whether it is
// one of the grammar's ("whole"), the beginning of one ("beginning"), or neither ("refused").

#include "llama-grammar.h"

#include <fstream>
#include <iostream>
#include <sstream>

static std::string unescaped(const std::string & line) {
    std::string text;
    for (size_t at = 0; at < line.size(); at++) {
        if (line[at] != '\\') {
            text += line[at];
            continue;
        }
        switch (line[++at]) {
            case 'n': text += '\n'; break;
            case 't': text += '\t'; break;
            case 'r': text += '\r'; break;
            case 'x': text += (char) std::stoi(line.substr(at + 1, 2), nullptr, 16); at += 2; break;
            default: text += line[at];
        }
    }
    return text;
}

int main(int, char ** arguments) {
    std::stringstream source;
    source << std::ifstream(arguments[1]).rdbuf();
    std::string line;
    while (std::getline(std::cin, line)) {
        auto * grammar = llama_grammar_init_impl(nullptr, source.str().c_str(), "root", false, nullptr, 0, nullptr, 0);
        if (!grammar) {
            return 1;
        }
        auto & stacks = llama_grammar_get_stacks(grammar);
        bool is_alive = true;
        try {
            llama_grammar_accept_str(*grammar, unescaped(line));
        } catch (const std::exception &) {
            is_alive = false;
        }
        is_alive = is_alive && !stacks.empty();
        bool is_whole = false;
        for (const auto & stack : stacks) {
            is_whole = is_whole || stack.empty();
        }
        std::cout << (!is_alive ? "refused" : is_whole ? "whole" : "beginning") << std::endl;
        llama_grammar_free_impl(grammar);
    }
}
