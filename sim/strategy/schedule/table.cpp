#include <array>
#include <charconv>

#include "sim/strategy/schedule/kinds.hpp"

namespace sim {

const Table<ScheduleKind>& schedule_table() {
  static const std::array kinds{gpipe_kind(), one_f_one_b_kind(), forward_only_kind()};
  static const Table<ScheduleKind> table("schedule", kinds);
  return table;
}

std::string to_text(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions)
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", action.kind == Action::Kind::forward ? 'F' : 'B',
                        action.microbatch);
  return text;
}

std::vector<Action> actions_from_text(std::string_view text) {
  std::vector<Action> actions;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    Action action{};
    const char* last = word.data() + word.size();
    bool known = word.size() >= 2 && (word[0] == 'F' || word[0] == 'B');
    if (known) {
      const auto [rest, error] = std::from_chars(word.data() + 1, last, action.microbatch);
      known = error == std::errc() && rest == last && action.microbatch >= 0;
    }
    if (!known) throw ConfigError("schedule text: '{}' is not an action; expected F0, B0, …", word);
    action.kind = word[0] == 'F' ? Action::Kind::forward : Action::Kind::backward;
    actions.push_back(action);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return actions;
}

}  // namespace sim
