#include "sim/text/spec.hpp"

#include <nlohmann/json.hpp>

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

TEST(SpecText, ReadsHeadAndItems) {
  const SpecText text("pipeline,pp=2,schedule=gpipe,x=-1.5e3", "strategy");
  EXPECT_EQ(text.head(), "pipeline");
  EXPECT_EQ(text.items().size(), 3U);
  EXPECT_EQ(text.integer("pp", 1, 1, 16), 2);
  EXPECT_EQ(text.integer("tp", 7, 1, 16), 7);
  EXPECT_EQ(text.text("schedule"), "gpipe");
  EXPECT_EQ(text.text("cut"), std::nullopt);
  EXPECT_EQ(text.number("x", 0, -1e4, 1e4), -1500);
  EXPECT_EQ(text.number("y", 0.5, 0, 1), 0.5);
  EXPECT_TRUE(text.has("x") && !text.has("pipeline") && !text.has("y"));
  text.finish({"x", "pp", "schedule", "unused"});

  EXPECT_EQ(SpecText("dp=2,pp=4", "strategy").head(), "");
  EXPECT_EQ(SpecText("dp=2,pp=4", "strategy").items().size(), 2U);
  EXPECT_EQ(SpecText("a=b=c", "strategy").text("a"), "b=c");  // the first '=' splits
  EXPECT_EQ(SpecText("", "strategy").head(), "");
}

TEST(SpecText, SaysWhatIsWrong) {
  const auto message = [](std::string_view text) { return message_of([&] { SpecText(text, "strategy"); }); };
  EXPECT_EQ(message("ddp,dp"), "strategy 'ddp,dp': 'dp' has no '='; expected key=value");
  EXPECT_EQ(message("dp=2,ddp"), "strategy 'dp=2,ddp': 'ddp' has no '='; expected key=value");
  EXPECT_EQ(message("ddp,,dp=2"), "strategy 'ddp,,dp=2': an empty item; expected name,key=value,…");
  EXPECT_EQ(message("ddp,"), "strategy 'ddp,': an empty item; expected name,key=value,…");
  EXPECT_EQ(message(","), "strategy ',': an empty item; expected name,key=value,…");
  EXPECT_EQ(message("ddp,dp="), "strategy 'ddp,dp=': 'dp=' lacks a key or a value; expected key=value");
  EXPECT_EQ(message("=2"), "strategy '=2': '=2' lacks a key or a value; expected key=value");
  EXPECT_EQ(message("ddp,dp=2,dp=2"), "strategy 'ddp,dp=2,dp=2': 'dp' is given twice");
  EXPECT_EQ(message_of([] {
              SpecText("ddp,dq=2", "strategy").finish({"dp", "pp"});
            }),
            "strategy 'ddp,dq=2': unknown key 'dq'; known: dp, pp");
  EXPECT_EQ(message_of([] {
              SpecText("ddp,overlpa=1", "strategy").finish({"dp", "overlap"});
            }),
            "strategy 'ddp,overlpa=1': unknown key 'overlpa'; known: dp, overlap; did you mean 'overlap'?");
}

TEST(SpecText, ChecksNumbers) {
  for (const char* value : {"0", "17", "-3", "2.5", "2x", "x", "0x2", "+2", " 2", "99999999999999999999"})
    EXPECT_EQ(message_of([&] { (void)SpecText(fmt::format("a,n={}", value), "model").integer("n", 1, 1, 16); }),
              fmt::format("model 'a,n={0}': n={0} must be a whole number from 1 to 16", value));
  for (const char* value : {"-0.1", "2.6", "nan", "inf", "x", "1e", "1e999", "0.5 "})
    EXPECT_EQ(message_of([&] { (void)SpecText(fmt::format("a,n={}", value), "model").number("n", 1, 0, 2.5); }),
              fmt::format("model 'a,n={0}': n={0} must be a number from 0 to 2.5", value));
  EXPECT_EQ(SpecText("n=1", "model").integer("n", 5, 1, 16), 1);  // the bounds themselves are allowed
  EXPECT_EQ(SpecText("n=16", "model").integer("n", 5, 1, 16), 16);
  EXPECT_EQ(SpecText("n=2.5", "model").number("n", 1, 0, 2.5), 2.5);
  EXPECT_EQ(message_of([] { (void)SpecText("n=0x10", "model").number("n", 1, 0, 20); }),
            "model 'n=0x10': n=0x10 must be a number from 0 to 20");
  EXPECT_EQ(SpecText("n=2x16", "model").integer_in("n", "16", 1, 16), 16);
  EXPECT_EQ(message_of([] { (void)SpecText("n=2x17", "model").integer_in("n", "17", 1, 16); }),
            "model 'n=2x17': n=17 must be a whole number from 1 to 16");
}

JsonObject object() {
  return parse_json(R"({"text": "a", "number": 1.5, "whole": 3, "yes": true, "whole_list": [1, 2],
                        "number_list": [1, 2.5], "text_list": ["a", "b"], "inner": {"x": 1}, "inner_list": [{"y": 2}],
                        "mixed": [1, "a"], "long": "0123456789012345678901234567890123456789"})",
                    "f.json");
}

TEST(JsonObject, ReadsEveryType) {
  JsonObject json = object();
  EXPECT_EQ(json.text("text"), "a");
  EXPECT_EQ(json.text("absent", "b"), "b");
  EXPECT_EQ(json.number("number"), 1.5);
  EXPECT_EQ(json.number("whole"), 3);
  EXPECT_EQ(json.number("absent", 4), 4);
  EXPECT_EQ(json.integer("whole"), 3);
  EXPECT_EQ(json.integer("absent", 5), 5);
  EXPECT_TRUE(json.boolean("yes", false));
  EXPECT_TRUE(json.boolean("absent", true));
  EXPECT_EQ(json.integers("whole_list"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(json.numbers("number_list"), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(json.texts("text_list"), (std::vector<std::string>{"a", "b"}));
  JsonObject inner = json.object("inner");
  EXPECT_EQ(inner.where(), "f.json: inner");
  EXPECT_EQ(inner.integer("x"), 1);
  inner.finish();
  EXPECT_EQ(json.objects("inner_list").at(0).integer("y"), 2);
  EXPECT_EQ(json.objects("inner_list").at(0).where(), "f.json: inner_list[0]");
  EXPECT_EQ(json.value("mixed").size(), 2U);
  EXPECT_EQ(json.keys().size(), 11U);
  EXPECT_EQ(
      message_of([&] { json.finish(); }),
      "f.json: unknown key 'long'; known: absent, inner, inner_list, mixed, number, number_list, text, text_list, "
      "whole, whole_list, yes");
  EXPECT_EQ(json.text("long").size(), 40U);
  json.finish();
}

TEST(JsonObject, SaysWhatIsMissingOrOfTheWrongType) {
  JsonObject json = object();
  const auto message = [&](auto read) { return message_of([&] { (void)read(json); }); };
  EXPECT_EQ(message([](JsonObject& j) { return j.text("absent"); }), "f.json: 'absent' is missing");
  EXPECT_EQ(message([](JsonObject& j) { return j.object("absent").where(); }), "f.json: 'absent' is missing");
  EXPECT_EQ(message([](JsonObject& j) { return j.text("whole"); }), "f.json: 'whole' must be a text, found 3");
  EXPECT_EQ(message([](JsonObject& j) { return j.text("whole", "x"); }), "f.json: 'whole' must be a text, found 3");
  EXPECT_EQ(message([](JsonObject& j) { return j.number("text"); }), "f.json: 'text' must be a number, found \"a\"");
  EXPECT_EQ(message([](JsonObject& j) { return j.integer("number"); }),
            "f.json: 'number' must be a whole number, found 1.5");
  EXPECT_EQ(message([](JsonObject& j) { return j.integer("number", 2); }),
            "f.json: 'number' must be a whole number, found 1.5");
  EXPECT_EQ(message([](JsonObject& j) { return j.boolean("whole", true); }),
            "f.json: 'whole' must be true or false, found 3");
  EXPECT_EQ(message([](JsonObject& j) { return j.integers("number_list").size(); }),
            "f.json: 'number_list' must be a list of whole numbers, found [1,2.5]");
  EXPECT_EQ(message([](JsonObject& j) { return j.numbers("mixed").size(); }),
            "f.json: 'mixed' must be a list of numbers, found [1,\"a\"]");
  EXPECT_EQ(message([](JsonObject& j) { return j.texts("text").size(); }),
            "f.json: 'text' must be a list of texts, found \"a\"");
  EXPECT_EQ(message([](JsonObject& j) { return j.object("text_list").where(); }),
            "f.json: 'text_list' must be an object, found [\"a\",\"b\"]");
  EXPECT_EQ(message([](JsonObject& j) { return j.objects("inner").size(); }),
            "f.json: 'inner' must be a list of objects, found {\"x\":1}");
  EXPECT_EQ(message([](JsonObject& j) { return j.objects("mixed").size(); }),
            "f.json: mixed[0]: must be a JSON object");
  // Long values are cut.
  EXPECT_EQ(message([](JsonObject& j) { return j.number("long"); }),
            "f.json: 'long' must be a number, found \"012345678901234567890123456789012345678…");
}

TEST(JsonObject, RefusesNumbersThatDontFit) {
  const auto whole = [](const std::string& value) {
    return message_of([&] { parse_json("{\"n\": " + value + "}", "f.json").integer("n"); });
  };
  EXPECT_EQ(whole("9223372036854775807"), "no error");
  EXPECT_EQ(whole("-9223372036854775808"), "no error");
  EXPECT_EQ(whole("9223372036854775808"), "f.json: 'n' must be a whole number, found 9223372036854775808");
  EXPECT_EQ(message_of([] { parse_json("{\"n\": [18446744073709551615]}", "f.json").integers("n"); }),
            "f.json: 'n' must be a list of whole numbers, found [18446744073709551615]");
  EXPECT_EQ(message_of([] { parse_json("{\"n\": 1e999}", "f.json"); }),
            "f.json: not valid JSON: number overflow parsing '1e999'");
}

// The folders of a path may have any names: it ends at the first ".json" before a comma or the end.
TEST(SpecText, PathsMayHaveCommasAndEqualsSigns) {
  const SpecText text("runs/lr=0.1,mom=0.9/net.json,image=64,global_batch=8", "model");
  EXPECT_EQ(text.head(), "runs/lr=0.1,mom=0.9/net.json");
  EXPECT_EQ(text.integer("image", 0, 1, 100), 64);
  EXPECT_EQ(text.items().size(), 2U);
  EXPECT_EQ(SpecText("a=1/b.json.old/net.json", "model").head(), "a=1/b.json.old/net.json");
  EXPECT_EQ(SpecText("a=1/net.json", "model").items().size(), 0U);
  EXPECT_EQ(SpecText("net.jsonx,a=1", "model").head(), "net.jsonx");
  EXPECT_EQ(head_of("dp=2,pp=2"), "");
  EXPECT_EQ(head_of("ddp,dp=2"), "ddp");
  EXPECT_EQ(head_of(""), "");
  EXPECT_EQ(message_of([] { SpecText("runs/net.json,", "model"); }),
            "model 'runs/net.json,': an empty item; expected name,key=value,…");
}

TEST(ParseJson, SaysWhere) {
  EXPECT_EQ(message_of([] { parse_json(R"({"a": })", "f.json"); }), "f.json: not valid JSON at line 1, column 7");
  EXPECT_EQ(message_of([] { parse_json("{\"a\": 1,\n  \"b\" 2}", "f.json"); }),
            "f.json: not valid JSON at line 2, column 7");
  EXPECT_EQ(message_of([] { parse_json("{\n\"a\": 1,\n", "f.json"); }),
            "f.json: not valid JSON at line 3, column 1 (the file is truncated)");
  EXPECT_EQ(message_of([] { parse_json(R"([1, 2])", "f.json"); }), "f.json: must be a JSON object");
  EXPECT_EQ(message_of([] { parse_json("{} x", "f.json"); }), "f.json: not valid JSON at line 1, column 4");
  const std::string whole = R"({"a": [1, {"b": "c"}]})";
  EXPECT_EQ(message_of([&] { parse_json(whole, "f.json"); }), "no error");
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(message_of([&] { parse_json(whole.substr(0, length), "f.json"); }),
              fmt::format("f.json: not valid JSON at line 1, column {} (the file is truncated)", length + 1));
}

TEST(Catalog, NamesAndPaths) {
  const TemporaryFolder folder;
  (void)folder.file("models/b.json", "{}");
  (void)folder.file("models/a.json", "{}");
  (void)folder.file("models/readme.txt", "");
  ASSERT_EQ(::setenv("PARAGAUGE_CATALOG_DIR", (folder / "").c_str(), 1), 0);
  EXPECT_EQ(catalog_names("models"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(catalog_file("models", "model", "b"), folder / "models/b.json");
  EXPECT_EQ(catalog_file("models", "model", "elsewhere/c.json"), "elsewhere/c.json");
  EXPECT_EQ(message_of([] { catalog_file("models", "model", "c"); }),
            "unknown model 'c'; known: a, b, or a path to a .json file");
  EXPECT_EQ(message_of([] { catalog_names("devices"); }),
            fmt::format("catalog folder {}: No such file or directory", (folder / "devices").string()));
  ::unsetenv("PARAGAUGE_CATALOG_DIR");
  EXPECT_GE(catalog_names("models").size(), 12U);
}

}  // namespace
}  // namespace sim
