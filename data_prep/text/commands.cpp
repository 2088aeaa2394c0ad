#include "data_prep/text/commands.h"

#include <iostream>
#include <memory>

#include "base/error.h"
#include "data_prep/text/names.h"
#include "data_prep/text/text.h"
#include "data_prep/verify.h"

namespace ringtrain {

DataCommand declare_names(CommandLine& program) {
  CLI::App& c =
      program.add("names",
                  "Turns names into a data set of prefixes. INPUT has one name a line, or is a table (CSV, TSV) with "
                  "a header; '-' is standard input.");
  struct Typed : NamesOptions {
    std::vector<std::string> words;
    bool lower_case = false;
  };
  const auto o = std::make_shared<Typed>();
  add_operands(c, o->words, "INPUT");
  add_file_options(c, *o, "2");
  c.add_option("--column", o->input.column,
               "the table's column, by its header or its number; without it, a file that ends in .csv, .tsv, .tab or "
               ".psv uses the column 'name', or the only one whose header contains 'name'")
      ->type_name("NAME");
  c.add_option("--separator", o->input.separator,
               "what separates the table's fields: a character, or comma, semicolon, tab, pipe, space, none (each line "
               "is one name) [guessed from the first lines]")
      ->type_name("CHARACTER");
  c.add_flag("!--no-header", o->input.has_header, "the table's first line is a record; --column is a number then");
  c.add_option("--header-line", o->input.header_line,
               "the line of the table's header, counted from 1; the lines above it are left out")
      ->type_name("N")
      ->check(whole_number(1));
  c.add_flag("!--no-quotes", o->input.has_quotes, "quotation marks are letters, as in some tables with tabs");
  c.add_option("--alphabet", o->alphabet,
               "study31 (* + a-z - . space; other names are dropped) or auto (every symbol that occurs, at most 252) "
               "[study31 if 95 % of the names fit into it, otherwise auto]")
      ->type_name("study31|auto");
  CLI::Option* keep = c.add_flag("--keep-case", o->keep_case, "does not lower-case");
  c.add_flag("--lowercase", o->lower_case, "lower-cases [the default]")->excludes(keep);
  c.add_flag("--drop-rare", o->drop_rare,
             "with --alphabet auto: keeps the 252 most frequent symbols and drops the names with others");
  c.add_option("--max-length", o->longest, cat("drops names of more symbols; at most 10000 [", o->longest, "]"))
      ->type_name("N")
      ->check(whole_number(1));
  c.add_option("--context", o->context, cat("symbols before the predicted one [", o->context, "]"))
      ->type_name("N")
      ->check(whole_number(1));
  add_validation(c, o->validation, "share of the distinct names held out [0.1]");
  return {&c, false, [o, &c] {
            o->input.path = one_input(c, o->words);
            convert_names(*o, std::cout);
            return 0;
          }};
}

DataCommand declare_text(CommandLine& program) {
  CLI::App& c = program.add("text",
                            "Turns running text into a data set of characters. The last part of the text is the "
                            "validation split. '-' is standard input.");
  struct Typed : TextOptions {
    std::vector<std::string> words;
  };
  const auto o = std::make_shared<Typed>();
  add_operands(c, o->words, "INPUT");
  add_file_options(c, *o, "2");
  c.add_option("--alphabet", o->alphabet, "auto (UTF-8 symbols, at most 254) or bytes [auto]")->type_name("auto|bytes");
  add_validation(c, o->validation, "share of the text held out [0.05]");
  return {&c, false, [o, &c] {
            o->input = one_input(c, o->words);
            convert_text(*o, std::cout);
            return 0;
          }};
}

DataCommand declare_verify(CommandLine& program) {
  CLI::App& c = program.add(
      "verify",
      "Checks everything about a data set: files, attributes, types, totals, ids and checksums. Of images, it checks "
      "that every one decodes, has the shape that the file says, has a label of a class, and is in one split only; it "
      "also counts the images of each class. Of names, it checks the padding, that every row is a prefix of its name, "
      "and that no name is in both splits. PREFIX is a converter's --out (both splits) or one split of it. Every fault "
      "is one line; the exit code is 1 if there is any.");
  const auto targets = std::make_shared<std::vector<std::string>>();
  add_operands(c, *targets, "PREFIX|FILE.h5 ...");
  return {&c, false, [targets] {
            if (targets->empty()) throw Error("expected a PREFIX or a file", "ringtrain-data verify --help");
            std::size_t faults = 0;
            for (const std::string& target : *targets) {
              const Verification result = verify_dataset(target);
              for (const std::string& line : result.summary) std::cout << line << "\n";
              for (const std::string& line : result.faults) std::cerr << "fault: " << line << "\n";
              faults += result.faults.size();
            }
            std::cout << (faults == 0 ? "no faults found\n" : cat(faults, " fault(s) found\n"));
            return faults == 0 ? 0 : 1;
          }};
}

}  // namespace ringtrain
