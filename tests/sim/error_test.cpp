#include "sim/error.hpp"

#include <gtest/gtest.h>

namespace sim {
namespace {

TEST(DidYouMean, NamesWhatIsMostAlike) {
  const std::vector<std::string_view> commands{"list", "describe", "predict", "measure", "resnet18", "resnet50", "ddp"};
  const auto mean = [&](std::string_view wrong) { return did_you_mean(wrong, commands); };
  EXPECT_EQ(mean("prdict"), "; did you mean 'predict'?");
  EXPECT_EQ(mean("preditc"), "; did you mean 'predict'?");  // a swap is one edit
  EXPECT_EQ(mean("PREDICT"), "; did you mean 'predict'?");
  EXPECT_EQ(mean("measures"), "; did you mean 'measure'?");
  EXPECT_EQ(mean("resnet51"), "; did you mean 'resnet50'?");
  EXPECT_EQ(mean("dpp"), "; did you mean 'ddp'?");
  for (const char* unlike : {"", "d", "dp2", "zero", "calibrate", "lost+found"}) EXPECT_EQ(mean(unlike), "") << unlike;
  EXPECT_EQ(mean(std::string(1'000'000, 'x')), "");
  EXPECT_EQ(did_you_mean("predict", {}), "");
}

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("plain, gewöhnlich, 普通, 🙂\nnext"), "plain, gewöhnlich, 普通, 🙂\nnext");
  EXPECT_EQ(printable("\x1b[31mred\x1b[0m"), "\\x1b[31mred\\x1b[0m");
  EXPECT_EQ(printable(std::string("\0\a\b\t\r\x7f", 6)), "\\x00\\x07\\x08\\x09\\x0d\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m");  // C1's CSI
  EXPECT_EQ(printable("\x9b"
                      "31m \xff \xc3"),
            "\\x9b31m \\xff \\xc3");  // no UTF-8
  EXPECT_EQ(printable("\xc0\x9b \xe2\x82"), "\\xc0\\x9b \\xe2\\x82");
}

}  // namespace
}  // namespace sim
