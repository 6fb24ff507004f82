// Reads answers of models with llama.cpp's parser, for scripts/compare/answers. Each line of standard input is a JSON object: template
// (the file of a chat template), user (the message that is answered), tools (as in a request), pieces (texts of the answer). Each is
// answered with a line: content, reasoning and calls ([name, arguments] each) of the deltas, as llama-server joins them; or error.
#include "chat.h"
#include "log.h"

#include <nlohmann/json.hpp>

#include <array>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

using json = nlohmann::ordered_json;

static common_chat_templates_ptr load(const std::string &path)
{
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return common_chat_templates_init(nullptr, text.str(), "<s>", "</s>");
}

static common_chat_parser_params params_of(const common_chat_templates *templates, const json &in)
{
    common_chat_templates_inputs inputs;
    common_chat_msg user;
    user.role = "user";
    user.content = in["user"];
    inputs.messages = {user};
    inputs.parallel_tool_calls = true;
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    for (const json &tool : in["tools"]) {
        const json &function = tool["function"];
        inputs.tools.push_back({function["name"], "", function["parameters"].dump()});
    }
    common_chat_params chat = common_chat_templates_apply(templates, inputs);
    common_chat_parser_params params(chat);
    params.reasoning_format = inputs.reasoning_format;
    if (!chat.parser.empty())
        params.parser.load(chat.parser);
    return params;
}

static json read(const common_chat_parser_params &params, const json &pieces)
{
    std::string text, content, reasoning;
    std::vector<std::array<std::string, 2>> calls;
    common_chat_msg was;
    for (size_t i = 0; i <= pieces.size(); i++) { // the last time without a piece, as the end
        if (i < pieces.size())
            text += pieces[i].get<std::string>();
        common_chat_msg now = common_chat_parse(text, i < pieces.size(), params);
        if (now.empty())
            continue;
        for (const common_chat_msg_diff &diff : common_chat_msg_diff::compute_diffs(was, now)) {
            content += diff.content_delta;
            reasoning += diff.reasoning_content_delta;
            if (diff.tool_call_index == std::string::npos)
                continue;
            if (calls.size() <= diff.tool_call_index)
                calls.resize(diff.tool_call_index + 1);
            calls[diff.tool_call_index][0] += diff.tool_call_delta.name;
            calls[diff.tool_call_index][1] += diff.tool_call_delta.arguments;
        }
        was = now;
    }
    return {{"content", content}, {"reasoning", reasoning}, {"calls", calls}};
}

int main()
{
    std::map<std::string, common_chat_templates_ptr> templates;
    common_log_pause(common_log_main());
    for (std::string line; std::getline(std::cin, line);) {
        json in = json::parse(line), out;
        try {
            common_chat_templates_ptr &t = templates[in["template"]];
            if (!t)
                t = load(in["template"]);
            out = read(params_of(t.get(), in), in["pieces"]);
        } catch (const std::exception &e) {
            out = {{"error", e.what()}};
        }
        std::cout << out.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    }
}
